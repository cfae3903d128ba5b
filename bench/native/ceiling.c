/* The ceiling: a minimal server for Produce v9, in C with epoll. It has one thread, and one file per partition.
 *
 * It splits frames, parses the request, checks the batch's header and CRC-32C, stamps offset and leader epoch, appends to the file
 * and responds. It keeps no index, producer state or metrics and validates no records: it measures the minimum cost of Produce.
 *
 * `ceiling DIRECTORY` accepts any topic, prints its port and serves until it is killed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "crc32c.h"

enum { PARTITIONS_MAX = 256, EVENTS_MAX = 256, BUFFER_BYTES = 8 << 20, OUT_BYTES = 1 << 16, NAME_MAX_BYTES = 126, RESPONSE_BYTES_MAX = 256 };
enum { MAGIC_AT = 16, CRC_AT = 17, ATTRIBUTES_AT = 21, LAST_OFFSET_DELTA_AT = 23, HEADER_BYTES = 61, LENGTH_OVERHEAD = 12 };

struct connection { int fd; size_t start, end; unsigned char *buffer; };
static struct { int fd; uint64_t next_offset; off_t size; } partitions[PARTITIONS_MAX];
static unsigned char out[OUT_BYTES];
static const char *directory;

static void fail(const char *what) { fprintf(stderr, "ceiling: %s (%s)\n", what, errno ? strerror(errno) : "no system error"); exit(1); }
static uint32_t get32(const unsigned char *at) { uint32_t v; memcpy(&v, at, 4); return ntohl(v); }
static unsigned char *put32(unsigned char *at, uint32_t v) { v = htonl(v); memcpy(at, &v, 4); return at + 4; }
static unsigned char *put64(unsigned char *at, uint64_t v) { return put32(put32(at, (uint32_t)(v >> 32)), (uint32_t)v); }

static uint32_t varint(const unsigned char **at, const unsigned char *end) {
    uint32_t value = 0;
    for (int shift = 0; shift < 35 && *at < end; shift += 7) {
        unsigned char byte = *(*at)++;
        value |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    fail("unterminated varint");
    return 0;
}

static uint64_t append(uint32_t index, unsigned char *batch, size_t size) {
    if (size < HEADER_BYTES || batch[MAGIC_AT] != 2 || get32(batch + 8) + LENGTH_OVERHEAD != size) fail("not a batch of format 2");
    if (crc32c(batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT) != get32(batch + CRC_AT)) fail("wrong checksum");
    if (index >= PARTITIONS_MAX) fail("partition out of range");
    if (!partitions[index].fd) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%u.log", directory, index);
        if ((partitions[index].fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644)) < 0) fail(path);
    }
    uint64_t offset = partitions[index].next_offset;
    put64(batch, offset);
    put32(batch + 12, 0); /* the leader epoch */
    if (pwrite(partitions[index].fd, batch, size, partitions[index].size) != (ssize_t)size) fail("pwrite");
    partitions[index].size += (off_t)size;
    partitions[index].next_offset = offset + get32(batch + LAST_OFFSET_DELTA_AT) + 1;
    return offset;
}

/* Handles a request with one batch for one partition and returns the end of its response. */
static unsigned char *handle(unsigned char *frame, size_t size, unsigned char *response) {
    const unsigned char *at = frame + 8, *end = frame + size;
    if (size < 32 || get32(frame) != 9) fail("only Produce v9 is supported"); /* compares key 0 and version 9 at once */
    int16_t client_id = (int16_t)(at[0] << 8 | at[1]);
    at += 2 + (client_id > 0 ? client_id : 0) + 1; /* no tags */
    at += 1 + 2 + 4;                               /* no transactional id; acks; timeout */
    if (varint(&at, end) != 2) fail("expected one topic per request");
    const unsigned char *name = at;
    uint32_t name_size = varint(&at, end);
    if (name_size > NAME_MAX_BYTES) fail("topic name too long");
    at += name_size - 1;
    if (varint(&at, end) != 2) fail("expected one partition per request");
    uint32_t index = get32(at);
    at += 4;
    uint32_t records = varint(&at, end) - 1;
    if (at + records > end) fail("truncated batch");
    uint64_t offset = append(index, (unsigned char *)at, records);

    unsigned char *put = response + 4;
    memcpy(put, frame + 4, 4); /* correlation id */
    put += 4;
    *put++ = 0; /* tags of the header */
    *put++ = 2; /* one topic */
    memcpy(put, name, name_size);
    put += name_size;
    *put++ = 2; /* one partition */
    put = put32(put, index);
    *put++ = 0, *put++ = 0; /* no error */
    put = put64(put64(put64(put, offset), ~0ull), 0); /* base offset, no append time, log start */
    *put++ = 1, *put++ = 0, *put++ = 0, *put++ = 0;   /* no record errors, no message, tags of partition and topic */
    put = put32(put, 0);                              /* not throttled */
    *put++ = 0;
    put32(response, (uint32_t)(put - response - 4));
    return put;
}

static void flush(struct connection *c, unsigned char *end) {
    for (unsigned char *at = out; at < end;) {
        ssize_t sent = send(c->fd, at, (size_t)(end - at), MSG_NOSIGNAL);
        if (sent < 0) return; /* the client has disconnected; the next recv reports it */
        at += sent;
    }
}

/* Returns 0 when the client has disconnected. */
static int serve(struct connection *c) {
    ssize_t size = recv(c->fd, c->buffer + c->end, BUFFER_BYTES - c->end, MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN) return 1;
    if (size <= 0) return 0;
    c->end += (size_t)size;
    unsigned char *put = out;
    while (c->end - c->start >= 4) {
        size_t frame = get32(c->buffer + c->start);
        if (frame + 4 > BUFFER_BYTES) fail("frame too large");
        if (c->end - c->start < frame + 4) break;
        put = handle(c->buffer + c->start + 4, frame, put);
        c->start += frame + 4;
        if (put > out + OUT_BYTES - RESPONSE_BYTES_MAX) flush(c, put), put = out;
    }
    flush(c, put);
    size_t left = c->end - c->start, next = left >= 4 ? get32(c->buffer + c->start) + 4 : 4;
    if (left == 0 || c->start + next > BUFFER_BYTES) {
        memmove(c->buffer, c->buffer + c->start, left);
        c->start = 0, c->end = left;
    }
    return 1;
}

static void accept_client(int listener, int poll_fd) {
    struct connection *c = calloc(1, sizeof *c);
    int yes = 1;
    c->fd = accept(listener, 0, 0);
    c->buffer = malloc(BUFFER_BYTES);
    if (c->fd < 0 || !c->buffer) fail("accept");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
}

int main(int argc, char **argv) {
    if (argc != 2) fail("usage: ceiling DIRECTORY");
    directory = argv[1];
    crc32c_prepare();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), poll_fd = epoll_create1(0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 128)) fail("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &length)) fail("getsockname");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = 0}, events[EVENTS_MAX];
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event)) fail("epoll_ctl");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(poll_fd, events, EVENTS_MAX, -1);
        if (count < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                accept_client(listener, poll_fd);
            } else if (!serve(c)) {
                close(c->fd);
                free(c->buffer);
                free(c);
            }
        }
    }
}
