/* Load generator: sends prepared frames over N connections with M requests in flight on each, from one thread with epoll.
 *
 * It checks order (correlation id), size and error codes (at known positions) of every response. Responses count between the end
 * of the warm-up and the end of the measured time; after that it only waits for the outstanding ones. The result is printed as
 * one line of JSON.
 *
 * Arguments are name=value. `frames` is a file of [uint32 connection, little endian][frame with its size in front]...
 * `port` and `pid` may be repeated for a cluster: connection n goes to port n modulo their number, and the servers' CPU time is that of
 * all processes. `tls` is the certificate that the server must present; it needs a build with WITH_TLS. SIGTERM ends the measured time
 * early.
 * With batch_at, every frame contains a batch of an idempotent producer there, whose sequence number and checksum are updated
 * for each request. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "crc32c.h"
#include "transport.h"

enum { IN_FLIGHT_MAX = 64, HEAD_BYTES = 512, EVENTS_MAX = 256, ERRORS_AT_MAX = 4, SERVERS_MAX = 64, RECEIVE_BYTES = 256 * 1024 };
enum { CONNECTS_AT_ONCE = 16, CONNECT_PAUSE_NS = 3000000 }; /* overflowing the listen queue of 50 costs a second each time */
enum { WARM_PART = 5 }; /* the warm-up takes at most a fifth of requests_max */
enum { CORRELATION_IN_REQUEST = 8, CORRELATION_IN_RESPONSE = 4 };
enum { BATCH_LENGTH = 8, BATCH_CRC = 17, BATCH_ATTRIBUTES = 21, BATCH_SEQUENCE = 53, LENGTH_OVERHEAD = 12 };
#define STALL_NS 20000000000ull

/* Latency histogram: 64 buckets between consecutive powers of two, so a quantile is at most 1.6 % too large. */
enum { STEP_BITS = 6, STEPS = 1 << STEP_BITS, POWERS = 40 };
static uint64_t histogram[POWERS * STEPS], slowest;

struct frame { unsigned char *bytes; uint32_t size; };
struct connection {
    int fd;
    session session;
    struct frame *frames;
    uint32_t count, next;
    bool sending, blocked;
    uint32_t sent;                    /* bytes already sent of the current frame */
    uint64_t started[IN_FLIGHT_MAX];  /* start time of each request in flight */
    uint32_t oldest, waiting;
    uint32_t correlation_out, correlation_in;
    uint32_t sequence;
    uint32_t got, size;               /* received bytes and total size of the current response */
    unsigned char head[HEAD_BYTES];
};

static struct { long in_flight, requests_max, response_min, response_max, batch_at, records; double warm, seconds; } args = {
    .in_flight = 1, .response_min = 9, .response_max = 1 << 30, .batch_at = -1};
static struct numbers { long values[SERVERS_MAX]; int count; } ports, pids;
static int errors_at[ERRORS_AT_MAX], errors_at_count;
static struct connection *connections;
static uint32_t connection_count;
static uint64_t requests, responses, counted, errors, last_response_at, now_ns;
static int first_error;
static const char *authority;
static bool sending = true, counting;
static int poll_fd;
static volatile sig_atomic_t stopped;
static unsigned char received[RECEIVE_BYTES];

static void fail(const char *what) { fprintf(stderr, "load: %s (%s)\n", what, errno ? strerror(errno) : "no system error"); exit(1); }

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint32_t get32(const unsigned char *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }
static void put32(unsigned char *at, uint32_t value) { value = htonl(value); memcpy(at, &value, 4); }

static void observe(uint64_t ns) {
    int power = ns < STEPS ? 0 : 63 - __builtin_clzll(ns) - STEP_BITS + 1;
    uint64_t index = power == 0 ? ns : ((uint64_t)power << STEP_BITS) + (ns >> (power - 1)) - STEPS;
    if (index >= POWERS * STEPS) index = POWERS * STEPS - 1;
    histogram[index]++;
    if (ns > slowest) slowest = ns;
}

static double quantile_us(double share) {
    uint64_t wanted = (uint64_t)(share * (double)counted), seen = 0;
    for (uint64_t index = 0; index < POWERS * STEPS; index++) {
        seen += histogram[index];
        if (seen <= wanted) continue;
        uint64_t power = index >> STEP_BITS, upper = power == 0 ? index + 1 : ((index & (STEPS - 1)) + STEPS + 1) << (power - 1);
        return (double)(upper < slowest ? upper : slowest) / 1000;
    }
    return (double)slowest / 1000;
}

/* User and system time of a process, in seconds. */
static double cpu_seconds(long pid) {
    char path[64], text[2048];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) fail("cannot read the server's /proc/<pid>/stat; it may have exited");
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    unsigned long user = 0, kernel = 0;
    char *rest = strrchr(text, ')'); /* the process name before it may contain any character */
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2) fail("/proc/<pid>/stat");
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double server_cpu_seconds(void) {
    double sum = 0;
    for (int i = 0; i < pids.count; i++) sum += cpu_seconds(pids.values[i]);
    return sum;
}

static double own_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void advance_sequence(struct connection *c, struct frame *frame) {
    unsigned char *batch = frame->bytes + args.batch_at;
    put32(batch + BATCH_SEQUENCE, c->sequence);
    c->sequence = (c->sequence + (uint32_t)args.records) & 0x7fffffff;
    uint32_t size = get32(batch + BATCH_LENGTH) + LENGTH_OVERHEAD;
    put32(batch + BATCH_CRC, crc32c(batch + BATCH_ATTRIBUTES, size - BATCH_ATTRIBUTES));
}

static void watch(struct connection *c, bool blocked) {
    if (c->blocked == blocked) return;
    c->blocked = blocked;
    struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl");
}

static void send_more(struct connection *c) {
    for (;;) {
        struct frame *frame = &c->frames[c->next];
        if (!c->sending) {
            if (!sending || c->waiting >= (uint32_t)args.in_flight) break;
            if (args.requests_max && requests >= (uint64_t)args.requests_max) { sending = false; break; }
            put32(frame->bytes + CORRELATION_IN_REQUEST, c->correlation_out++);
            if (args.batch_at >= 0) advance_sequence(c, frame);
            c->started[(c->oldest + c->waiting++) % IN_FLIGHT_MAX] = now();
            c->sending = true;
            c->sent = 0;
            requests++;
        }
        long sent = session_send(c->session, c->fd, frame->bytes + c->sent, frame->size - c->sent);
        if (sent == BLOCKED) { watch(c, true); return; }
        if (sent <= 0) fail("send");
        c->sent += (uint32_t)sent;
        if (c->sent == frame->size) {
            c->sending = false;
            c->next = (c->next + 1) % c->count;
        }
    }
    watch(c, false);
}

static void on_response(struct connection *c) {
    if (c->waiting == 0) fail("response without a request");
    if (get32(c->head + CORRELATION_IN_RESPONSE) != c->correlation_in++) fail("response out of order");
    for (int i = 0; i < errors_at_count; i++) {
        int code = (int16_t)(c->head[errors_at[i]] << 8 | c->head[errors_at[i] + 1]);
        if (code != 0) {
            if (errors++ == 0) first_error = code;
            break;
        }
    }
    if ((long)c->size < args.response_min || (long)c->size > args.response_max) {
        fprintf(stderr, "load: a response of %u bytes; expected %ld to %ld\n", c->size, args.response_min, args.response_max);
        exit(1);
    }
    if (counting) {
        observe(now_ns - c->started[c->oldest % IN_FLIGHT_MAX]);
        counted++;
    }
    c->oldest = (c->oldest + 1) % IN_FLIGHT_MAX;
    c->waiting--;
    responses++;
    last_response_at = now_ns;
}

/* Splits received data into responses, keeping only their first HEAD_BYTES. */
static void split(struct connection *c, const unsigned char *data, size_t left) {
    while (left) {
        size_t want = c->got < 4 ? 4 - c->got : c->size - c->got, piece = want < left ? want : left;
        if (c->got < HEAD_BYTES) memcpy(c->head + c->got, data, piece < HEAD_BYTES - c->got ? piece : HEAD_BYTES - c->got);
        c->got += (uint32_t)piece;
        data += piece;
        left -= piece;
        if (c->got == 4 && (c->size = get32(c->head) + 4) < 9) fail("response without a complete header");
        if (c->got > 4 && c->got == c->size) {
            on_response(c);
            c->got = 0;
        }
    }
}

static void receive(struct connection *c) {
    do {
        long size = session_receive(c->session, c->fd, received, sizeof received);
        if (size == BLOCKED) break;
        if (size <= 0) fail(size ? "recv" : "the server closed the connection");
        now_ns = now();
        split(c, received, (size_t)size);
    } while (reads_ahead);
    send_more(c);
}

static void read_frames(const char *path) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &info)) fail("cannot read the frames file");
    unsigned char *at = malloc((size_t)info.st_size), *end = at + info.st_size;
    if (!at || fread(at, 1, (size_t)info.st_size, file) != (size_t)info.st_size) fail("cannot read the frames file");
    fclose(file);
    while (at + 8 <= end) {
        uint32_t number, size = get32(at + 4) + 4;
        memcpy(&number, at, 4);
        if (at + 4 + size > end || number > connection_count) fail("the frames file is malformed");
        if (number == connection_count) {
            connections = realloc(connections, ++connection_count * sizeof *connections);
            memset(&connections[number], 0, sizeof *connections);
        }
        struct connection *c = &connections[number];
        c->frames = realloc(c->frames, (c->count + 1) * sizeof *c->frames);
        c->frames[c->count++] = (struct frame){at + 4, size};
        at += 4 + size;
    }
}

static void connect_all(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    poll_fd = epoll_create1(0);
    for (uint32_t i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        int yes = 1;
        if (i && i % CONNECTS_AT_ONCE == 0) nanosleep(&(struct timespec){.tv_nsec = CONNECT_PAUSE_NS}, 0);
        address.sin_port = htons((uint16_t)ports.values[i % (uint32_t)ports.count]);
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (!session_begin(&c->session, c->fd, authority)) fail("TLS handshake");
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
    }
}

static void add_number(struct numbers *numbers, const char *value) {
    if (numbers->count == SERVERS_MAX) fail("too many servers");
    numbers->values[numbers->count++] = atol(value);
}

static void parse(int argc, char **argv) {
    static const struct { const char *name; long *whole; double *real; } known[] = {
        {"in_flight", &args.in_flight, 0}, {"requests_max", &args.requests_max, 0},
        {"response_min", &args.response_min, 0}, {"response_max", &args.response_max, 0}, {"batch_at", &args.batch_at, 0},
        {"records", &args.records, 0}, {"warm", 0, &args.warm}, {"seconds", 0, &args.seconds}};
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) fail(argv[i]);
        *value++ = 0;
        if (!strcmp(argv[i], "frames")) { read_frames(value); continue; }
        if (!strcmp(argv[i], "tls")) { authority = value; continue; }
        if (!strcmp(argv[i], "port")) { add_number(&ports, value); continue; }
        if (!strcmp(argv[i], "pid")) { add_number(&pids, value); continue; }
        if (!strcmp(argv[i], "error_at")) {
            int at = atoi(value);
            if (errors_at_count == ERRORS_AT_MAX || at < 0 || at + 2 > HEAD_BYTES || at + 2 > args.response_min) fail("error_at");
            errors_at[errors_at_count++] = at;
            continue;
        }
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(argv[i], known[k].name)) k++;
        if (k == sizeof known / sizeof *known) fail(argv[i]);
        if (known[k].whole) *known[k].whole = atol(value); else *known[k].real = atof(value);
    }
    if (args.in_flight < 1 || args.in_flight > IN_FLIGHT_MAX || connection_count == 0 || ports.count == 0) fail("in_flight, frames or port");
}

static void stop(int number) { stopped = number; }

static bool is_idle(void) {
    for (uint32_t i = 0; i < connection_count; i++)
        if (connections[i].waiting) return false;
    return true;
}

int main(int argc, char **argv) {
    signal(SIGTERM, stop);
    signal(SIGPIPE, SIG_IGN);
    crc32c_prepare();
    parse(argc, argv);
    connect_all();
    uint64_t start = last_response_at = now_ns = now(), from = 0, until = 0;
    uint64_t warm_end = start + (uint64_t)(args.warm * 1e9), end = warm_end + (uint64_t)(args.seconds * 1e9);
    double server_cpu = 0, own_cpu = 0;
    for (uint32_t i = 0; i < connection_count; i++) send_more(&connections[i]);
    struct epoll_event events[EVENTS_MAX];
    for (;;) {
        now_ns = now();
        bool warm_part_sent = args.requests_max && requests >= (uint64_t)args.requests_max / WARM_PART;
        if (!from && (now_ns >= warm_end || warm_part_sent)) {
            server_cpu = server_cpu_seconds();
            own_cpu = own_cpu_seconds();
            from = now();
            counting = true;
        }
        if (from && !until && (now_ns >= end || stopped || (!sending && is_idle()))) {
            until = now();
            server_cpu = server_cpu_seconds() - server_cpu;
            own_cpu = own_cpu_seconds() - own_cpu;
            sending = counting = false;
        }
        if (until && is_idle()) break;
        if (now_ns - last_response_at > STALL_NS) { errno = 0; fail("no response within 20 s"); }
        int count = epoll_wait(poll_fd, events, EVENTS_MAX, 10);
        if (count < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < count; i++) {
            if (events[i].events & ~(unsigned)EPOLLOUT) receive(events[i].data.ptr);
            else send_more(events[i].data.ptr);
        }
    }
    printf("{\"seconds\": %.6f, \"responses\": %llu, \"all_responses\": %llu, \"errors\": %llu, \"first_error\": %d, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"server_cpu_s\": %.3f, \"client_cpu_s\": %.3f, \"tls\": \"%s\"}\n",
           (double)(until - from) / 1e9, (unsigned long long)counted, (unsigned long long)responses, (unsigned long long)errors, first_error,
           quantile_us(0.5), quantile_us(0.99), quantile_us(0.999), (double)slowest / 1000, server_cpu, own_cpu, tls_negotiated);
    return 0;
}
