/* Kernel keys (keyrings(7)): a child has no keys of its parent, the daemon or other children. It has its own session
 * keyring, which its processes share. */
#include "resource.h"

#include <linux/keyctl.h>

static long find(const char *name) {
    return syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", name, 0);
}

static long add(const char *name) {
    return syscall(SYS_add_key, "user", name, "secret", 6, KEY_SPEC_SESSION_KEYRING);
}

static void set_up(void) {
    REQUIRE(syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) > 0 && add("farfork-parent") > 0);
}

static void check(void) {
    int status;
    if (!is_child) {
        REQUIRE(find("farfork-parent") > 0);
        return;
    }
    char keys[64];
    long bytes = syscall(SYS_keyctl, KEYCTL_READ, KEY_SPEC_SESSION_KEYRING, keys, sizeof keys);
    REQUIRE(bytes == 0, "the keyring has %ld bytes of key ids", bytes);
    REQUIRE(find("farfork-parent") == -1 && errno == ENOKEY);
    REQUIRE(find("farfork-child") == -1 && errno == ENOKEY);
    pid_t other = fork();
    if (other == 0) _exit(add("farfork-child") < 0);
    REQUIRE(waitpid(other, &status, 0) == other && status == 0);
    REQUIRE(find("farfork-child") > 0);
}
