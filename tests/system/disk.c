/* A disk with faults, put before the C library by LD_PRELOAD.

   DISK_COUNT=path       adds a byte to that file for every flush ("f") and every write ("w")
   DISK_KILL_FLUSH=k     kills the process at its k-th flush
   DISK_KILL_WRITE=k     kills the process in the middle of its k-th write
   DISK_KILL_PAGE=k      kills it in the middle of its k-th write to a file named *.db
   DISK_EIO=path         while that file exists, a flush fails with EIO
   DISK_FULL=path        while that file exists, a write fails with ENOSPC
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int flushes, writes, pages;

static void count(const char *mark) {
    const char *path = getenv("DISK_COUNT");
    if (!path) return;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (write(fd, mark, 1) != 1) abort();
        close(fd);
    }
}

static int is_at(const char *name, int number) {
    const char *at = getenv(name);
    return at && atoi(at) == number;
}

static int is_on(const char *name) {
    const char *path = getenv(name);
    return path && access(path, F_OK) == 0;
}

static int is_database(int fd) {
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path);
    return size > 3 && memcmp(path + size - 3, ".db", 3) == 0;
}

static int is_last_page(int fd) {
    return getenv("DISK_KILL_PAGE") && is_database(fd) && is_at("DISK_KILL_PAGE", ++pages);
}

static int flush(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    count("f");
    if (is_at("DISK_KILL_FLUSH", ++flushes)) kill(getpid(), SIGKILL);
    if (is_on("DISK_EIO")) {
        errno = EIO;
        return -1;
    }
    return real(fd);
}

int fsync(int fd) { return flush("fsync", fd); }
int fdatasync(int fd) { return flush("fdatasync", fd); }

typedef ssize_t (*writer)(int, const void *, size_t, off64_t);

static ssize_t put(const char *name, int fd, const void *data, size_t size, off64_t at) {
    writer real = (writer)dlsym(RTLD_NEXT, name);
    count("w");
    if (is_at("DISK_KILL_WRITE", ++writes) || is_last_page(fd)) {
        real(fd, data, size / 2, at);
        kill(getpid(), SIGKILL);
    }
    if (is_on("DISK_FULL")) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return put("pwrite", fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return put("pwrite64", fd, data, size, at);
}
