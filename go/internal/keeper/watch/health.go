// Package watch asks sandboxes whether they are well.
package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Health says whom to ask and how patiently.
type Health struct {
	URL      string
	Interval time.Duration
	Timeout  time.Duration
	Strikes  int // failures in a row that make a sandbox unhealthy
	// Unsure says that the sandbox may have been reported as unhealthy before: that it is well is reported too.
	Unsure bool
}

// Validate tells what is wrong with h.
func (h *Health) Validate() error {
	if err := CheckURL(h.URL); err != nil {
		return fmt.Errorf("health_url: %w", err)
	}
	if h.Interval < 10*time.Millisecond || h.Timeout < 10*time.Millisecond || h.Strikes < 1 {
		return errors.New("a health watch needs interval_ms and timeout_ms of at least 10 and strikes of at least 1")
	}
	return nil
}

// CheckURL tells what is wrong with the address of a daemon inside a sandbox.
func CheckURL(address string) error {
	target, err := url.Parse(address)
	if err != nil || target.Scheme != "http" || target.Host == "" {
		return fmt.Errorf("%q is not an http URL", address)
	}
	return nil
}

// client trusts nothing: no proxy, no redirect (a sandbox could send us anywhere), no connection kept, small headers.
var client = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		DialContext:            (&net.Dialer{}).DialContext,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 8 << 10,
	},
}

// Run asks until ctx ends. changed is called with the reason when the sandbox becomes unhealthy, and with "" when it
// is healthy again, or for the first time if nobody is sure that it was.
func (h *Health) Run(ctx context.Context, changed func(reason string)) {
	failures, unhealthy, unsure := 0, false, h.Unsure
	ticker := time.NewTicker(h.Interval)
	defer ticker.Stop()
	for {
		err := h.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil && (unhealthy || unsure):
			unhealthy, unsure, failures = false, false, 0
			changed("")
		case err == nil:
			failures = 0
		default:
			failures++
			if failures >= h.Strikes && !unhealthy {
				unhealthy, unsure = true, false
				changed(err.Error())
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (h *Health) ask(ctx context.Context) error {
	return call(ctx, http.MethodGet, h.URL, h.Timeout)
}

// alertTimeout is long: the sandbox may be busy filling its memory.
const alertTimeout = 2 * time.Second

// Alert tells the daemon at address that memory is running out.
func Alert(ctx context.Context, address string) error {
	return call(ctx, http.MethodPost, address, alertTimeout)
}

// call sends a request without a body and reads none; nil if the status says that all is well.
func call(ctx context.Context, method, address string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("no answer within %v", timeout)
		}
		return err
	}
	response.Body.Close()
	if response.StatusCode >= 300 {
		return fmt.Errorf("answered status %d", response.StatusCode)
	}
	return nil
}
