/* Makes the n-th call of the C library on chosen files or on sockets fail, as LD_PRELOAD.
 *
 * Nothing happens until failing_calls_arm() was called. A call counts when it works on a path below `where` (or on a
 * descriptor that was opened there), or on any socket where `where` is "sockets", and when it can end with that error.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DESCRIPTORS 65536
#define SHORT 4096 /* instead of an error number: half of the bytes are read or written */
#define KILL 4097 /* instead of an error number: the process is killed before the call */

static char where[4096];
static int on_sockets, error_wanted, forever;
static long failing;
static atomic_long counted;
static atomic_uchar mine[DESCRIPTORS];
static char hit[4352];

void failing_calls_arm(const char *place, int error, long number, int go_on)
{
	snprintf(where, sizeof where, "%s", place);
	on_sockets = strcmp(place, "sockets") == 0;
	error_wanted = error;
	failing = number;
	forever = go_on;
	counted = 0;
}

long failing_calls_counted(void) { return counted; }
const char *failing_calls_hit(void) { return hit; }

static int is_mine(int fd) { return error_wanted && fd >= 0 && fd < DESCRIPTORS && mine[fd]; }

static int is_there(const char *path)
{
	return error_wanted && !on_sockets && path && strncmp(path, where, strlen(where)) == 0;
}

static int can_end_so(const int *errors)
{
	if (error_wanted == KILL)
		return 1;
	for (; *errors; errors++)
		if (*errors == error_wanted)
			return 1;
	return 0;
}

/* Whether this call is the one. */
static int fails(const char *call, const char *path, int fd, const int *errors)
{
	if (!can_end_so(errors))
		return 0;
	long number = ++counted;
	if (!failing || (forever ? number < failing : number != failing))
		return 0;
	if (error_wanted == KILL)
		kill(getpid(), SIGKILL);
	if (!hit[0]) {
		char link[64], name[4096] = "";
		if (!path) {
			snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
			ssize_t length = syscall(SYS_readlink, link, name, sizeof name - 1);
			name[length > 0 ? length : 0] = 0;
		}
		snprintf(hit, sizeof hit, "%s %s", call, path ? path : name);
	}
	if (on_sockets && forever && fd >= 0)
		shutdown(fd, SHUT_RDWR); /* what fails for good is readable, as the end of file */
	errno = error_wanted;
	return 1;
}

#define ERRORS(...) (const int[]){ __VA_ARGS__, 0 }
#define REAL(name) \
	static __typeof__(&name) real; \
	if (!real) \
		real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int opened(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS)
		mine[fd] = 1;
	return fd;
}

#define OPENING ERRORS(EIO, ENOSPC, EMFILE, ENOMEM, EINTR, EACCES)
#define OPENING_TO_READ ERRORS(EIO, EMFILE, ENOMEM, EINTR, EACCES)

int open64(const char *path, int flags, ...)
{
	REAL(open64);
	va_list rest;
	va_start(rest, flags);
	mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
	va_end(rest);
	if (!is_there(path))
		return real(path, flags, mode);
	if (fails("open", path, -1, flags & O_CREAT ? OPENING : OPENING_TO_READ))
		return -1;
	return opened(real(path, flags, mode));
}

/* The path of a name in an open directory. */
static const char *path_at(int at, const char *name, char *path, size_t size)
{
	char link[64], folder[4096];
	if (name[0] == '/' || at == AT_FDCWD)
		return name;
	snprintf(link, sizeof link, "/proc/self/fd/%d", at);
	ssize_t length = syscall(SYS_readlink, link, folder, sizeof folder - 1);
	folder[length > 0 ? length : 0] = 0;
	snprintf(path, size, "%s/%s", folder, name);
	return path;
}

int openat64(int at, const char *name, int flags, ...)
{
	REAL(openat64);
	char whole[8192];
	va_list rest;
	va_start(rest, flags);
	mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
	va_end(rest);
	const char *path = path_at(at, name, whole, sizeof whole);
	if (!is_there(path))
		return real(at, name, flags, mode);
	if (fails("openat", path, -1, flags & O_CREAT ? OPENING : OPENING_TO_READ))
		return -1;
	return opened(real(at, name, flags, mode));
}

int close(int fd)
{
	REAL(close);
	if (fd >= 0 && fd < DESCRIPTORS)
		mine[fd] = 0;
	return real(fd);
}

#define OF_DESCRIPTOR(type, name, parameters, arguments, error_list) \
	type name parameters \
	{ \
		REAL(name); \
		if (is_mine(fd) && fails(#name, NULL, fd, error_list)) \
			return -1; \
		return real arguments; \
	}
#define OF_PATH(type, name, parameters, arguments, error_list) \
	type name parameters \
	{ \
		REAL(name); \
		if (is_there(path) && fails(#name, path, -1, error_list)) \
			return -1; \
		return real arguments; \
	}
#define OF_NAME(name, parameters, arguments, error_list) \
	int name parameters \
	{ \
		REAL(name); \
		char whole[8192]; \
		const char *path = path_at(at, called, whole, sizeof whole); \
		if (is_there(path) && fails(#name, path, -1, error_list)) \
			return -1; \
		return real arguments; \
	}
/* One that moves bytes, which may be fewer than asked for. */
#define MOVING(name, parameters, arguments, fewer, error_list) \
	ssize_t name parameters \
	{ \
		REAL(name); \
		if (is_mine(fd) && (error_wanted != SHORT || size > 1) && fails(#name, NULL, fd, error_list)) { \
			if (error_wanted != SHORT) \
				return -1; \
			size /= 2; \
			return real fewer; \
		} \
		return real arguments; \
	}
#define READING ERRORS(EIO, EINTR, ENOMEM, SHORT)
#define WRITING ERRORS(EIO, ENOSPC, EINTR, SHORT)
#define SENDING ERRORS(EIO, EINTR, ENOMEM, SHORT)

MOVING(read, (int fd, void *bytes, size_t size), (fd, bytes, size), (fd, bytes, size), READING)
MOVING(pread64, (int fd, void *bytes, size_t size, off64_t at), (fd, bytes, size, at), (fd, bytes, size, at), READING)
MOVING(write, (int fd, const void *bytes, size_t size), (fd, bytes, size), (fd, bytes, size),
       on_sockets ? SENDING : WRITING)
MOVING(pwrite64, (int fd, const void *bytes, size_t size, off64_t at), (fd, bytes, size, at), (fd, bytes, size, at), WRITING)
MOVING(send, (int fd, const void *bytes, size_t size, int flags), (fd, bytes, size, flags), (fd, bytes, size, flags), SENDING)
MOVING(recv, (int fd, void *bytes, size_t size, int flags), (fd, bytes, size, flags), (fd, bytes, size, flags), SENDING)

OF_DESCRIPTOR(int, fsync, (int fd), (fd), ERRORS(EIO, ENOSPC, EINTR))
OF_DESCRIPTOR(int, fdatasync, (int fd), (fd), ERRORS(EIO, ENOSPC, EINTR))
OF_DESCRIPTOR(int, ftruncate64, (int fd, off64_t size), (fd, size), ERRORS(EIO, ENOSPC, EINTR))
OF_DESCRIPTOR(int, flock, (int fd, int how), (fd, how), ERRORS(ENOLCK, EINTR, ENOMEM))
OF_DESCRIPTOR(int, fstat64, (int fd, struct stat64 *found), (fd, found), ERRORS(EIO, ENOMEM))
OF_DESCRIPTOR(int, fchmod, (int fd, mode_t mode), (fd, mode), ERRORS(EIO, EACCES))
OF_DESCRIPTOR(int, connect, (int fd, const struct sockaddr *to, socklen_t size), (fd, to, size), ERRORS(ENOMEM, EACCES))

OF_PATH(int, stat64, (const char *path, struct stat64 *found), (path, found), ERRORS(EIO, ENOMEM, EACCES))
OF_PATH(int, lstat64, (const char *path, struct stat64 *found), (path, found), ERRORS(EIO, ENOMEM, EACCES))
OF_PATH(int, statvfs64, (const char *path, struct statvfs64 *found), (path, found), ERRORS(EIO, ENOMEM, EACCES, EINTR))
OF_PATH(int, access, (const char *path, int mode), (path, mode), ERRORS(EIO, ENOMEM, EACCES))
OF_PATH(int, unlink, (const char *path), (path), ERRORS(EIO, ENOMEM, EACCES))
OF_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode), ERRORS(EIO, ENOSPC, ENOMEM, EACCES))
OF_PATH(int, chmod, (const char *path, mode_t mode), (path, mode), ERRORS(EIO, ENOMEM, EACCES))
OF_PATH(int, link, (const char *path, const char *to), (path, to), ERRORS(EIO, ENOSPC, ENOMEM, EACCES))
OF_PATH(ssize_t, readlink, (const char *path, char *found, size_t size), (path, found, size), ERRORS(EIO, ENOMEM, EACCES))
OF_PATH(int, rename, (const char *path, const char *to), (path, to), ERRORS(EIO, ENOSPC, ENOMEM, EACCES))

OF_NAME(unlinkat, (int at, const char *called, int flags), (at, called, flags), ERRORS(EIO, ENOMEM, EACCES))
OF_NAME(mkdirat, (int at, const char *called, mode_t mode), (at, called, mode), ERRORS(EIO, ENOSPC, ENOMEM, EACCES))
OF_NAME(renameat, (int at, const char *called, int into, const char *to), (at, called, into, to),
	ERRORS(EIO, ENOSPC, ENOMEM, EACCES))

int fstatat64(int at, const char *path, struct stat64 *found, int flags)
{
	REAL(fstatat64);
	if (is_there(path) && fails("stat", path, -1, ERRORS(EIO, ENOMEM, EACCES)))
		return -1;
	return real(at, path, found, flags);
}

int posix_fallocate64(int fd, off64_t at, off64_t size)
{
	REAL(posix_fallocate64);
	if (is_mine(fd) && fails("posix_fallocate", NULL, fd, ERRORS(EIO, ENOSPC, EINTR)))
		return error_wanted;
	return real(fd, at, size);
}

int fcntl64(int fd, int command, ...)
{
	REAL(fcntl64);
	va_list rest;
	va_start(rest, command);
	void *argument = va_arg(rest, void *);
	va_end(rest);
	if ((command == F_SETLK || command == F_SETLKW) && is_mine(fd) &&
	    fails("fcntl", NULL, fd, command == F_SETLK ? ERRORS(ENOLCK) : ERRORS(ENOLCK, EINTR)))
		return -1;
	int found = real(fd, command, argument);
	if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
		return is_mine(fd) ? opened(found) : found;
	return found;
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset)
{
	REAL(mmap64);
	if (is_mine(fd) && fails("mmap", NULL, fd, ERRORS(ENOMEM, EACCES)))
		return MAP_FAILED;
	return real(at, size, protection, flags, fd, offset);
}

int socket(int family, int type, int protocol)
{
	REAL(socket);
	if (!error_wanted || !on_sockets)
		return real(family, type, protocol);
	if (fails("socket", "", -1, ERRORS(EMFILE, ENOMEM, EACCES)))
		return -1;
	return opened(real(family, type, protocol));
}

int poll(struct pollfd *those, nfds_t number, int timeout)
{
	REAL(poll);
	if (number == 1 && is_mine(those[0].fd) && fails("poll", NULL, those[0].fd, ERRORS(EINTR, ENOMEM)))
		return -1;
	return real(those, number, timeout);
}

DIR *opendir(const char *path)
{
	REAL(opendir);
	if (is_there(path) && fails("opendir", path, -1, ERRORS(EMFILE, ENOMEM, EACCES, EIO)))
		return NULL;
	DIR *found = real(path);
	if (found && is_there(path))
		opened(dirfd(found));
	return found;
}

struct dirent64 *readdir64(DIR *folder)
{
	REAL(readdir64);
	if (is_mine(dirfd(folder)) && fails("readdir", NULL, dirfd(folder), ERRORS(EIO)))
		return NULL;
	return real(folder);
}

int closedir(DIR *folder)
{
	REAL(closedir);
	mine[dirfd(folder)] = 0;
	return real(folder);
}
