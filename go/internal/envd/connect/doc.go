// Package connect speaks the JSON half of the Connect protocol over HTTP/1.1: unary calls, server
// streams and client streams, with the exact status codes, envelopes and error bodies that the E2B
// SDKs read.
//
// It is written by hand instead of using connectrpc.com/connect with generated messages. The wire has
// two services, about thirty small messages and no binary encoding, so the codec is a few hundred lines;
// the generated way adds some 5 MB of binary and 3 MB of resident memory to a daemon whose whole idle
// budget is 12 MB, and leaves no control over the order of flushes at the end of a stream, which
// decides how long a short command takes.
package connect
