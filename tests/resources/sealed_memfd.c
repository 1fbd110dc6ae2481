/* A memfd with all seals, one without seals that can be sealed, and one that cannot be sealed. */
#include "resource.h"

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static int sealed, open_to_seals, plain;

static void set_up(void) {
    sealed = memfd_create("sealed", MFD_ALLOW_SEALING | MFD_CLOEXEC), open_to_seals = memfd_create("open", MFD_ALLOW_SEALING);
    plain = memfd_create("plain", 0);
    REQUIRE(write(sealed, "kept", 4) == 4 && fcntl(sealed, F_ADD_SEALS, SEALS) == 0);
    REQUIRE(ftruncate(plain, 5000) == 0);
}

static void check(void) {
    char text[8] = {0};
    REQUIRE(fcntl(sealed, F_GET_SEALS) == SEALS && write(sealed, "x", 1) == -1 && ftruncate(sealed, 0) == -1);
    REQUIRE(pread(sealed, text, sizeof text, 0) == 4 && strcmp(text, "kept") == 0);
    REQUIRE(fcntl(open_to_seals, F_GET_SEALS) == 0 && fcntl(open_to_seals, F_ADD_SEALS, F_SEAL_GROW) == 0);
    REQUIRE(fcntl(plain, F_GET_SEALS) == F_SEAL_SEAL && lseek(plain, 0, SEEK_END) == 5000);
}
