// The init of a test's container: mounts /proc, then serves requests on descriptor 3 until the other end is closed. A
// request is a letter and a path:
//
// - R: read a file. W: write one (path, space, text). L: read a link. D: list a directory.
// - U: unmount. H: host name. T: talk to itself over 127.0.0.1.
// - S: start a process that sleeps. E: let a shell execute a command, and return its output.
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

static char answer[65536];

static void failed(void) { snprintf(answer, sizeof answer, "!%s", strerror(errno)); }

static void read_file(const char *path) {
    int fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? -1 : read(fd, answer, sizeof answer - 1);
    if (length < 0) failed(); else answer[length] = 0;
    if (fd >= 0) close(fd);
}

static void write_file(char *path) {
    char *text = strchr(path, ' ');
    *text++ = 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) failed();
    if (fd >= 0) close(fd);
}

static void list(const char *path) {
    DIR *directory = opendir(path);
    if (!directory) { failed(); return; }
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] != '.') {
            strcat(answer, entry->d_name);
            strcat(answer, "\n");
        }
    closedir(directory);
}

static void talk(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (void *)&address, size) || listen(server, 1) || getsockname(server, (void *)&address, &size) ||
        connect(client, (void *)&address, size))
        failed();
    close(server);
    close(client);
}

static void execute(const char *command) {
    FILE *output = popen(command, "r");
    size_t length = output ? fread(answer, 1, sizeof answer - 2, output) : 0;
    answer[length] = 0;
    if (!output || pclose(output) != 0) snprintf(answer, sizeof answer, "!the command failed");
}

int main(void) {
    char question[65536];
    int mounted = mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    for (ssize_t length; (length = recv(3, question, sizeof question - 1, 0)) > 0;) {
        question[length] = answer[0] = 0;
        char *path = question + 1;
        switch (mounted ? 0 : question[0]) {
        case 'R': read_file(path); break;
        case 'W': write_file(path); break;
        case 'L': if (readlink(path, answer, sizeof answer - 1) < 0) failed(); break;
        case 'D': list(path); break;
        case 'U': if (umount2(path, MNT_DETACH)) failed(); break;
        case 'H': gethostname(answer, sizeof answer); break;
        case 'T': talk(); break;
        case 'E': execute(path); break;
        case 'S': if (fork() == 0) { sleep(1000); _exit(0); } break;
        default: snprintf(answer, sizeof answer, "!/proc is not mounted, or the request is unknown");
        }
        size_t used = strlen(answer);
        memmove(answer + 1, answer, used + 1);
        answer[0] = '=';
        send(3, answer, used + 1, 0);
        memset(answer, 0, used + 2);
    }
    return 0;
}
