/* Ends a process before its n-th call that changes a file, and keeps the bytes that are durable at that moment.

   LD_PRELOAD this library, with ENDS_DIR (changes below it count), ENDS_AT (n; 0: never) and ENDS_IMAGE (a folder). The
   folder gets a line for each call in "calls", and for each inode that was changed a file with the bytes of its last
   sync. A sync is not passed on. Stores to mapped memory, such as SQLite's -shm and the node's page, are not seen. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char below[PATH_MAX], image[PATH_MAX];
static int left, calls = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_below(const char *path) { return below[0] && !strncmp(path, below, strlen(below)) && path[strlen(below)] == '/'; }
static int path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size > 0 ? size : 0] = 0;
    return is_below(path);
}
static int whole(const char *name, char *path) { /* the path of a name, with the links of its folder resolved */
    char parent[PATH_MAX], *slash;
    snprintf(parent, sizeof parent, "%s%s", strchr(name, '/') ? "" : "./", name);
    *(slash = strrchr(parent, '/')) = 0;
    if (!below[0] || !realpath(parent[0] ? parent : "/", path)) return 0;
    return strlen(path) + strlen(slash + 1) + 2 < PATH_MAX && is_below(strcat(strcat(path, "/"), slash + 1));
}
static void keep(int file, const char *path, int is_new, int again) { /* the bytes before the first change, or now */
    static char piece[1 << 16];
    char name[PATH_MAX + 32];
    struct stat found;
    if (file >= 0 ? fstat(file, &found) : stat(path, &found)) return;
    snprintf(name, sizeof name, "%s/%llu", image, (unsigned long long)found.st_ino);
    if (!S_ISREG(found.st_mode) || (!again && !access(name, F_OK))) return;
    int is_own = file < 0 || (fcntl(file, F_GETFL) & O_ACCMODE) == O_WRONLY; /* closing another drops SQLite's locks */
    int from = is_own ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0) : file;
    int to = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    off_t offset = 0;
    for (ssize_t size; !is_new && (size = pread(from, piece, sizeof piece, offset)) > 0; offset += size)
        syscall(SYS_write, to, piece, size);
    close(to), is_own && close(from);
}
#define CHANGE(what, is_ours, prepare, call, after) \
    char path[PATH_MAX]; \
    if (!(is_ours)) return call; \
    pthread_mutex_lock(&lock); \
    dprintf(calls, "%s %s\n", what, path + strlen(below)); \
    if (--left == 0) syscall(SYS_exit_group, 137); \
    prepare; \
    long result = call, code = errno; \
    after; \
    pthread_mutex_unlock(&lock); \
    return errno = code, result;
#define ON_FILE(call) CHANGE(__func__, path_of(file, path), keep(file, path, 0, 0), call, )
ssize_t write(int file, const void *data, size_t size) { ON_FILE(syscall(SYS_write, file, data, size)) }
ssize_t pwrite64(int file, const void *data, size_t size, off_t at) { ON_FILE(syscall(SYS_pwrite64, file, data, size, at)) }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return pwrite64(file, data, size, at); }
int ftruncate64(int file, off_t size) { ON_FILE(syscall(SYS_ftruncate, file, size)) }
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }
int fsync(int file) { CHANGE("fsync", path_of(file, path), keep(file, path, 0, 1), 0L, ) }
int fdatasync(int file) { return fsync(file); }
int unlink(const char *name) { CHANGE("unlink", whole(name, path), , syscall(SYS_unlink, name), ) }
int rename(const char *from, const char *to) { CHANGE("rename", whole(to, path), , syscall(SYS_rename, from, to), ) }
static int opened(const char *name, int flags, int mode) {
    int is_new = access(name, F_OK);
    CHANGE("open", flags & (O_CREAT | O_TRUNC) && whole(name, path) && (is_new || flags & O_TRUNC),
           if (!is_new) keep(-1, path, 0, 0), syscall(SYS_openat, AT_FDCWD, name, flags, mode),
           if (is_new) keep(result, path, 1, 1)) /* its inode may be that of a removed file */
}
#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list given; va_start(given, flags); int mode = va_arg(given, int); va_end(given); return opened(path, flags, mode); }
OPEN(open) OPEN(open64)
__attribute__((constructor)) static void begin(void) {
    char name[PATH_MAX + 8];
    if (!getenv("ENDS_DIR")) return;
    strcpy(image, getenv("ENDS_IMAGE"));
    snprintf(name, sizeof name, "%s/calls", image);
    calls = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    left = atoi(getenv("ENDS_AT"));
    if (!realpath(getenv("ENDS_DIR"), below)) below[0] = 0;
}
