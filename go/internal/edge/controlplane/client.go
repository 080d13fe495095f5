// Package controlplane talks to the control plane over its Unix socket, and waits for it while it restarts.
package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"forkyard.dev/forkyard/internal/edge/table"
)

const (
	// DefaultPatience is how long a request waits while the socket does not answer.
	DefaultPatience = 10 * time.Second

	dialTimeout = 2 * time.Second
	// The control plane's server closes idle connections after 5 s: let go of them first.
	idleTimeout = 4 * time.Second
	maxIdle     = 256

	firstPause = 20 * time.Millisecond
	longPause  = 200 * time.Millisecond

	maxWakeAnswer = 1 << 20
)

var (
	// ErrAway means that the socket did not answer for the whole patience; nothing was sent.
	ErrAway = errors.New("the control plane does not answer")
	// errWakeAnswer means that the control plane answered a wake call with nonsense.
	errWakeAnswer = errors.New("the control plane's answer to a wake call cannot be used")
)

// Client sends requests to the control plane. It is an http.RoundTripper.
type Client struct {
	socket    string
	patience  time.Duration
	transport *http.Transport
}

// New makes a client for the socket. patience of 0 means DefaultPatience.
func New(socket string, patience time.Duration) *Client {
	if patience == 0 {
		patience = DefaultPatience
	}
	c := &Client{socket: socket, patience: patience}
	c.transport = &http.Transport{
		DialContext:           c.dial,
		DisableCompression:    true,
		MaxIdleConnsPerHost:   maxIdle,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
	}
	return c
}

// dial connects to the socket, trying again until the patience is over. The transport calls it before it reads a
// request's body, so that a waiting request can still be sent whole.
func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	deadline := time.Now().Add(c.patience)
	pause := firstPause
	for {
		dialer := net.Dialer{Timeout: dialTimeout}
		conn, err := dialer.DialContext(ctx, "unix", c.socket)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if time.Now().Add(pause).After(deadline) {
			return nil, fmt.Errorf("%w: %w", ErrAway, err)
		}
		if !sleep(ctx, pause) {
			return nil, ctx.Err()
		}
		pause = min(2*pause, longPause)
	}
}

// RoundTrip sends req. While the socket does not answer it waits, then fails with ErrAway. A request without a body
// whose method changes nothing is sent again when the connection breaks before an answer.
func (c *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	deadline := time.Now().Add(c.patience)
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		res, err := c.transport.RoundTrip(req)
		if err == nil || !repeatable(req) || !Broken(err) || time.Now().After(deadline) || !sleep(req.Context(), pause) {
			return res, err
		}
	}
}

func repeatable(req *http.Request) bool {
	if req.Body != nil && req.Body != http.NoBody {
		return false
	}
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return false
}

// Broken reports whether a round trip failed because the connection ended before there was an answer.
func Broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// WakeAnswer is what the control plane said to a wake call. Route is set when Status is 200.
type WakeAnswer struct {
	Status int
	Header http.Header
	Body   []byte
	Route  table.Route
}

// Wake asks the control plane to bring a sandbox up and waits until it has, however long ctx lets it. A connection that
// breaks is taken up again, because waking twice is waking once. Fails with ErrAway, or ctx's error.
func (c *Client) Wake(ctx context.Context, id, reason string) (WakeAnswer, error) {
	question, err := json.Marshal(map[string]string{"id": id, "reason": reason})
	if err != nil {
		return WakeAnswer{}, err
	}
	for {
		answer, err := c.wakeOnce(ctx, question)
		if err == nil && answer.Status == http.StatusOK && (answer.Route.ID != id || answer.Route.State != table.Running) {
			err = errWakeAnswer
		}
		if err == nil || !Broken(err) || !sleep(ctx, longPause) {
			return answer, err
		}
	}
}

func (c *Client) wakeOnce(ctx context.Context, question []byte) (WakeAnswer, error) {
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           &url.URL{Scheme: "http", Host: "control-plane", Path: "/internal/wake"},
		Header:        http.Header{"Content-Type": {"application/json"}, "X-Forkyard-Internal": {"edge"}},
		Body:          io.NopCloser(bytes.NewReader(question)),
		ContentLength: int64(len(question)),
	}).WithContext(ctx)
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		return WakeAnswer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxWakeAnswer))
	if err != nil {
		return WakeAnswer{}, err
	}
	answer := WakeAnswer{Status: res.StatusCode, Header: res.Header, Body: body}
	if res.StatusCode != http.StatusOK {
		return answer, nil
	}
	var found struct {
		Route table.Route `json:"route"`
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return answer, fmt.Errorf("%w: %w", errWakeAnswer, err)
	}
	if err := found.Route.Check(); err != nil {
		return answer, fmt.Errorf("%w: %w", errWakeAnswer, err)
	}
	answer.Route = found.Route
	return answer, nil
}
