/* Transport of load.c: a plain socket, or OpenSSL if built with WITH_TLS. */
#ifdef WITH_TLS
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

enum { BLOCKED = -1, BROKEN = -2 }; /* returned in place of a byte count; 0 is the end of the stream */

#ifdef WITH_TLS
/* A fixed cipher suite, so that all servers use the same one. */
#define TLS_SUITE "TLS_AES_256_GCM_SHA384"
enum { TLS_READ_AHEAD = 64 * 1024 };
/* epoll does not see data that OpenSSL has read ahead, so a connection is read until it blocks. */
static const bool reads_ahead = true;
typedef SSL *session;
static SSL_CTX *tls_context;
static char tls_negotiated[96];

static bool session_begin(session *s, int fd, const char *authority) {
    if (!tls_context) {
        tls_context = SSL_CTX_new(TLS_client_method());
        if (!tls_context || !SSL_CTX_set_min_proto_version(tls_context, TLS1_3_VERSION) || !SSL_CTX_set_ciphersuites(tls_context, TLS_SUITE) ||
            !SSL_CTX_load_verify_locations(tls_context, authority, 0))
            return false;
        SSL_CTX_set_verify(tls_context, SSL_VERIFY_PEER, 0);
        SSL_CTX_set_mode(tls_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_read_ahead(tls_context, 1);
        SSL_CTX_set_default_read_buffer_len(tls_context, TLS_READ_AHEAD);
    }
    *s = SSL_new(tls_context);
    if (!*s || !SSL_set_fd(*s, fd) || SSL_connect(*s) != 1) return false;
    snprintf(tls_negotiated, sizeof tls_negotiated, "%s %s", SSL_get_version(*s), SSL_get_cipher_name(*s));
    return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0;
}

static long session_result(session s, int result) {
    if (result > 0) return result;
    switch (SSL_get_error(s, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return BLOCKED;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: return BROKEN;
    }
}

static long session_send(session s, int fd, const void *bytes, size_t size) {
    (void)fd;
    ERR_clear_error();
    return session_result(s, SSL_write(s, bytes, (int)size));
}

static long session_receive(session s, int fd, void *bytes, size_t size) {
    (void)fd;
    ERR_clear_error();
    return session_result(s, SSL_read(s, bytes, (int)size));
}
#else
static const bool reads_ahead = false;
static const char tls_negotiated[] = "";
typedef char session;

static bool session_begin(session *s, int fd, const char *authority) {
    (void)s, (void)fd;
    return !authority; /* this build does not support TLS */
}

static long session_result(ssize_t result) { return result >= 0 ? result : errno == EAGAIN ? BLOCKED : BROKEN; }

static long session_send(session s, int fd, const void *bytes, size_t size) {
    (void)s;
    return session_result(send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static long session_receive(session s, int fd, void *bytes, size_t size) {
    (void)s;
    return session_result(recv(fd, bytes, size, MSG_DONTWAIT));
}
#endif
