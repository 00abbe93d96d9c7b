/* Shifts the wall clock of a process by the seconds that stand in the file WALL_SHIFT_FILE, read at each look: a test
 * writes another number, and the clock jumps. Monotonic clocks are left alone. For LD_PRELOAD, on 64-bit Linux. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    const char *path = getenv("WALL_SHIFT_FILE");
    if (!path) return 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    char text[32];
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, id, now);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec spec;
    int result = clock_gettime(CLOCK_REALTIME, &spec);
    if (result == 0) {
        now->tv_sec = spec.tv_sec;
        now->tv_usec = spec.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *out) {
    struct timespec spec;
    clock_gettime(CLOCK_REALTIME, &spec);
    if (out) *out = spec.tv_sec;
    return spec.tv_sec;
}
