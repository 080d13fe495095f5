// Package ratelimit counts tries per client address in bounded memory.
package ratelimit

import (
	"net/netip"
	"sync"
	"time"
)

// maxTracked bounds how many addresses one generation remembers; two generations are kept.
const maxTracked = 8192

// Limiter lets each client address do perSecond things a second, with a burst of the same size.
type Limiter struct {
	perSecond float64
	now       func() time.Time

	mu      sync.Mutex
	current map[netip.Prefix]*bucket
	old     map[netip.Prefix]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

// New makes a limiter; now is the clock.
func New(perSecond int, now func() time.Time) *Limiter {
	return &Limiter{perSecond: float64(perSecond), now: now, current: make(map[netip.Prefix]*bucket)}
}

// Allow takes one token of the client at remoteAddr ("host:port") and reports whether there was one.
// An IPv6 client is its /64 network. Clients without a readable address share one bucket.
func (l *Limiter) Allow(remoteAddr string) bool {
	key := client(remoteAddr)
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.find(key, now)
	b.tokens = min(l.perSecond, b.tokens+now.Sub(b.at).Seconds()*l.perSecond)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

func (l *Limiter) find(key netip.Prefix, now time.Time) *bucket {
	if b := l.current[key]; b != nil {
		return b
	}
	b := l.old[key]
	if b == nil {
		b = &bucket{tokens: l.perSecond, at: now}
	}
	if len(l.current) >= maxTracked {
		l.old, l.current = l.current, make(map[netip.Prefix]*bucket)
	}
	l.current[key] = b
	return b
}

func client(remoteAddr string) netip.Prefix {
	addrPort, err := netip.ParseAddrPort(remoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	addr := addrPort.Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}
