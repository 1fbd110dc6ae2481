// A server that returns each byte, and a client that counts its round trips: `echo PORT`, `echo ADDRESS PORT SECONDS`.
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void serve(int listener) {
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection >= 0 && fork() == 0) {
            char byte;
            while (read(connection, &byte, 1) == 1 && write(connection, &byte, 1) == 1) {
            }
            _exit(0);
        }
        close(connection);
    }
}

static int call(int connection, int seconds) {
    char byte = 'x';
    long calls = 0;
    for (time_t end = time(NULL) + seconds; time(NULL) < end; calls++) {
        if (write(connection, &byte, 1) != 1 || read(connection, &byte, 1) != 1) {
            return 1;
        }
    }
    printf("%ld round trips per second\n", calls / seconds);
    return 0;
}

int main(int count, char **words) {
    int is_server = count == 2;
    if (!is_server && count != 4) {
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[is_server ? 1 : 2]))};
    int end = socket(AF_INET, SOCK_STREAM, 0);
    if (is_server) {
        int on = 1;
        setsockopt(end, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    } else if (inet_pton(AF_INET, words[1], &address.sin_addr) != 1) {
        return 2;
    }
    if ((is_server ? bind : connect)(end, (struct sockaddr *)&address, sizeof address) || (is_server && listen(end, 64))) {
        perror("echo");
        return 1;
    }
    if (is_server) {
        serve(end);
    }
    return call(end, atoi(words[3]) > 0 ? atoi(words[3]) : 1);
}
