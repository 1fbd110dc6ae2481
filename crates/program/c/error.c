/* The error text of each thread's last failed call: farfork_error(). */
#include "library.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char text[FARFORK_TEXT_BYTES];

const char *farfork_error(void) { return text; }

int say_errno(int error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    errno = error;
    return -1;
}
