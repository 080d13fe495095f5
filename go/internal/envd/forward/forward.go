// Package forward makes programs that listen on loopback only reachable at the sandbox's own address: on
// demand, port by port, when the edge finds a port closed and asks.
package forward

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"forkyard.dev/forkyard/internal/envd/procfs"
)

const (
	maxForwards = 1024
	// checkEvery is how often it is checked that the program still listens, while there are forwards. When it
	// has gone its port must be free again, for it may come back listening everywhere.
	checkEvery  = time.Second
	dialTimeout = 5 * time.Second
)

// Forwarder holds the open forwards.
type Forwarder struct {
	// Own lists the addresses of the sandbox to listen on.
	Own func() []netip.Addr

	mu       sync.Mutex
	forwards map[uint16]*forward
	checking bool
}

type forward struct {
	port      uint16
	target    netip.AddrPort
	listeners []net.Listener
}

// Open makes a port reachable; false if nothing listens on it.
func (f *Forwarder) Open(port uint16) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.Own()
	target, found, everywhere := choose(procfs.Listeners(), port, own)
	if everywhere {
		return true
	}
	if present := f.forwards[port]; present != nil {
		if found {
			return true
		}
		f.closeLocked(present)
	}
	if !found || len(f.forwards) >= maxForwards {
		return false
	}
	made := &forward{port: port, target: target}
	for _, addr := range own {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
		if err != nil {
			slog.Warn("a loopback port cannot be forwarded", "port", port, "address", addr.String(), "cause", err.Error())
			continue
		}
		made.listeners = append(made.listeners, listener)
		go serve(listener, target)
	}
	if len(made.listeners) == 0 {
		return false
	}
	if f.forwards == nil {
		f.forwards = map[uint16]*forward{}
	}
	f.forwards[port] = made
	if !f.checking {
		f.checking = true
		go f.check()
	}
	return true
}

// choose finds the loopback listener of a port. everywhere says that a program listens on all addresses,
// so that nothing is to do.
func choose(listeners []netip.AddrPort, port uint16, own []netip.Addr) (target netip.AddrPort, found, everywhere bool) {
	for _, listener := range listeners {
		if listener.Port() != port {
			continue
		}
		addr := listener.Addr()
		switch {
		case isOwn(addr, own): // our own forward, or a program that is reachable as it is
		case addr.IsUnspecified():
			everywhere = true
		case addr.IsLoopback() && (!found || addr.Is4()):
			target, found = netip.AddrPortFrom(addr, port), true
		}
	}
	return target, found, everywhere
}

func isOwn(addr netip.Addr, own []netip.Addr) bool {
	for _, one := range own {
		if one == addr {
			return true
		}
	}
	return false
}

// Reset closes all forwards; connections go on. After a restore the addresses are others.
func (f *Forwarder) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.forwards {
		f.closeLocked(one)
	}
}

func (f *Forwarder) closeLocked(one *forward) {
	for _, listener := range one.listeners {
		_ = listener.Close()
	}
	delete(f.forwards, one.port)
}

// check closes the forwards whose program has gone, and ends with the last of them.
func (f *Forwarder) check() {
	for range time.Tick(checkEvery) {
		f.mu.Lock()
		listeners, own := procfs.Listeners(), f.Own()
		for _, one := range f.forwards {
			if _, found, _ := choose(listeners, one.port, own); !found {
				f.closeLocked(one)
			}
		}
		if len(f.forwards) == 0 {
			f.checking = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
	}
}

func serve(listener net.Listener, target netip.AddrPort) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go join(client, target)
	}
}

// join copies both ways, each direction until its own end.
func join(client net.Conn, target netip.AddrPort) {
	defer func() { _ = client.Close() }()
	program, err := net.DialTimeout("tcp", target.String(), dialTimeout)
	if err != nil {
		if tcp, ok := client.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a closed port answers with a reset
		}
		return
	}
	defer func() { _ = program.Close() }()
	back := make(chan struct{})
	go func() {
		defer close(back)
		copyAndEnd(client, program)
	}()
	copyAndEnd(program, client)
	<-back
}

func copyAndEnd(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if tcp, ok := dst.(*net.TCPConn); ok && err == nil {
		_ = tcp.CloseWrite()
		return
	}
	_ = dst.Close()
	_ = src.Close()
}

// OwnAddresses are the IPv4 addresses of the sandbox that others can reach.
func OwnAddresses() []netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var own []netip.Addr
	for _, one := range all {
		if prefix, err := netip.ParsePrefix(one.String()); err == nil {
			addr := prefix.Addr()
			if addr.Is4() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
				own = append(own, addr)
			}
		}
	}
	return own
}
