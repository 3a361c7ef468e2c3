# SPDX-License-Identifier: Apache-2.0
"""Published figures beside ours, measured on the device in virtual time.

One module per figure (``f02``, ..., ``a03``) says what was published and how near we have to come,
and measures it. From the command down, each module needs only those below it:

    command                    the options; the exit code
    study                      figures, their parts in several processes, the document
    page, plots, table         the report
    catalog                    all figures by name
    f01 .. f23, a01 .. a03     one figure each
    load                       traffic: reads and writes in bulk, clients in a loop
    lab                        devices from presets, and the record of every run
    figure, claim              what a figure is; published value, tolerance, verdict

docs/paper.md is the manual, and says how to add a figure.
"""
