/* SPDX-License-Identifier: Apache-2.0 */
/* The example of csrc/examples, linked with the archive so that the sanitizers see it run too. */
int hello(int argc, char **argv);

#define main hello
#include "../../csrc/examples/hello.c"
#undef main

int main(void)
{
    char name[] = "hello", path[] = "hello.chm";
    char *argv[] = {name, path, NULL};

    return hello(2, argv);
}
