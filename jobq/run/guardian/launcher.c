/* Becomes the leader of a task: dies with the guardian, adopts what its tree orphans, and executes the program.
 *
 *     launcher GUARDIAN CWD PROGRAM [ARGUMENT]...
 *
 * GUARDIAN is the number of the process that must be our parent; CWD is `=` and a folder, or empty: this one.
 * The guardian starts this by posix_spawn, as the leader of a session, in the task's environment, with 0, 1 and 2 as
 * the task is to have them, its signals as they should be, and a pipe as 3. What `become` does in
 * `jobq.run.guardian.start_process` is done here without Python, in a twentieth of the time, and by then the guardian
 * goes on: a folder that does not answer holds up its own task alone (P1). Why nothing was executed is written to the
 * pipe in the same words: `cwd:ERRNO` or `program:ERRNO`; exec closes it.
 *
 * There is no C library in it: LD_PRELOAD and the like are the task's, and reach the task's program only.
 */

#if !defined(__linux__)
#error "Linux alone has what the guardian needs"
#endif

#include <asm/unistd.h> /* from the kernel: the numbers of its calls */
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/limits.h>
#include <linux/prctl.h>

enum { REPORT = 3, NOT_EXECUTED = 127, SIGKILL_ = 9, MOST_DESCRIPTORS = 1 << 20 };

/* One call of the kernel; below zero it is an errno. */
#if defined(__x86_64__)
static long call(long number, long a, long b, long c, long d, long e) {
    long answer;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return answer;
}
__asm__(".globl _start\n_start:\n  mov %rsp, %rdi\n  and $-16, %rsp\n  call start\n");
#elif defined(__aarch64__)
static long call(long number, long a, long b, long c, long d, long e) {
    register long which __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e;
    __asm__ volatile("svc 0"
                     : "+r"(first)
                     : "r"(which), "r"(second), "r"(third), "r"(fourth), "r"(fifth)
                     : "memory");
    return first;
}
__asm__(".globl _start\n_start:\n  mov x0, sp\n  bl start\n");
#else
#error "no calls of the kernel are written down for this processor: tasks are forked there"
#endif

static unsigned long length_of(const char *text) {
    unsigned long length = 0;
    while (text[length] != 0)
        length++;
    return length;
}

/* Append a text; returns the end, or 0 where it does not fit before `limit` with a zero behind it. */
static char *put(char *end, const char *limit, const char *text, unsigned long length) {
    if (end == 0 || length >= (unsigned long)(limit - end))
        return 0;
    for (unsigned long at = 0; at < length; at++)
        end[at] = text[at];
    end[length] = 0;
    return end + length;
}

/* Say why nothing is executed, and end. */
static void fail(const char *stage, long error) {
    char text[32], digits[20];
    int first = sizeof digits;
    do
        digits[--first] = (char)('0' + error % 10);
    while ((error /= 10) != 0);
    char *end = put(text, text + sizeof text, stage, length_of(stage));
    end = put(end, text + sizeof text, digits + first, sizeof digits - (unsigned long)first);
    call(__NR_write, REPORT, (long)text, end - text, 0, 0);
    for (;;)
        call(__NR_exit_group, NOT_EXECUTED, 0, 0, 0, 0);
}

static long number_in(const char *text) {
    long number = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        number = 10 * number + (*text - '0');
    return number;
}

/* Close what is not the task's. */
static void close_all_above(long last) {
    if (call(__NR_close_range, last + 1, ~0U, 0, 0, 0) == 0)
        return;
    struct { unsigned long soft, hard; } limit = {MOST_DESCRIPTORS, 0}; /* before Linux 5.9 one by one */
    call(__NR_prlimit64, 0, 7 /* RLIMIT_NOFILE */, 0, (long)&limit, 0);
    if (limit.soft > MOST_DESCRIPTORS)
        limit.soft = MOST_DESCRIPTORS;
    for (long each = last + 1; each < (long)limit.soft; each++)
        call(__NR_close, each, 0, 0, 0, 0);
}

/* Execute a program that is looked for in PATH, as Python's os.execvpe does; returns the errno that it tells. */
static long search(char *const argv[], char *const envp[]) {
    const char *path = "/bin:/usr/bin", *name = "PATH=";
    long told = 0, last = ENOENT;
    for (char *const *each = envp; *each != 0; each++) {
        int same = 0;
        while (name[same] != 0 && (*each)[same] == name[same])
            same++;
        if (name[same] == 0) {
            path = *each + same;
            break;
        }
    }
    for (;;) {
        unsigned long length = 0;
        while (path[length] != 0 && path[length] != ':')
            length++;
        char file[PATH_MAX];
        char *end = put(file, file + sizeof file, path, length);
        if (length != 0 && path[length - 1] != '/')
            end = put(end, file + sizeof file, "/", 1);
        end = put(end, file + sizeof file, argv[0], length_of(argv[0]));
        last = end == 0 ? ENAMETOOLONG : -call(__NR_execve, (long)file, (long)argv, (long)envp, 0, 0);
        if (told == 0 && last != ENOENT && last != ENOTDIR)
            told = last;
        if (path[length] == 0)
            return told != 0 ? told : last;
        path += length + 1;
    }
}

/* The stack is that of a new process: the count of arguments, the arguments, 0, the environment, 0. */
__attribute__((used)) static void start(long *stack) {
    long count = stack[0];
    char *const *argv = (char *const *)(stack + 1);
    char *const *envp = argv + count + 1;
    if (count < 4)
        fail("program:", EINVAL);
    call(__NR_fcntl, REPORT, F_SETFD, FD_CLOEXEC, 0, 0);
    long refused = -call(__NR_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (refused == 0)
        refused = -call(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL_, 0, 0, 0);
    if (refused != 0)
        fail("program:", refused);
    if (call(__NR_getppid, 0, 0, 0, 0, 0) != number_in(argv[1]))
        for (;;)
            call(__NR_exit_group, NOT_EXECUTED, 0, 0, 0, 0); /* the guardian died before we were armed (P2) */
    close_all_above(REPORT);
    unsigned long no_action[4] = {0}; /* what the C library of the guardian keeps for itself, it has ignored here */
    for (int each = 32; each <= 33; each++)
        call(__NR_rt_sigaction, each, (long)no_action, 0, 8, 0);
    if (argv[2][0] != 0 && (refused = -call(__NR_chdir, (long)(argv[2] + 1), 0, 0, 0, 0)) != 0)
        fail("cwd:", refused);
    argv += 3;
    for (const char *each = argv[0]; *each != 0; each++)
        if (*each == '/')
            fail("program:", -call(__NR_execve, (long)argv[0], (long)argv, (long)envp, 0, 0));
    fail("program:", search(argv, envp));
}
