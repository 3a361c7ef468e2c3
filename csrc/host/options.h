/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - options as given to options as used. */
#ifndef CHM_OPTIONS_H
#define CHM_OPTIONS_H

#include "chm.h"

/* Copy with the defaults filled in, checked. -EINVAL with err naming the field. */
int chm_options_settle(const struct chm_options *given, struct chm_options *out,
                       struct chm_error *err);

#endif
