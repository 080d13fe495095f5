// Package netconf puts the address and the route of a sandbox on the interface of its network namespace. runsc takes
// them off when it starts or restores a sandbox there, a start that fails included.
package netconf

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Net is the network of one sandbox.
type Net struct {
	Netns     string `json:"netns"`     // path of the namespace, as the host sees it
	Interface string `json:"interface"` // name inside, "eth0"
	Address   string `json:"address"`   // with prefix: "10.200.0.2/30"
	Gateway   string `json:"gateway"`
}

// Validate tells what is wrong with n.
func (n *Net) Validate() error {
	if n.Netns == "" || n.Interface == "" {
		return errors.New("net needs netns and interface")
	}
	ip, network, err := net.ParseCIDR(n.Address)
	if err != nil || ip.To4() == nil {
		return fmt.Errorf("net.address %q is not an IPv4 address with a prefix", n.Address)
	}
	gateway := net.ParseIP(n.Gateway)
	if gateway == nil || !network.Contains(gateway) {
		return fmt.Errorf("net.gateway %q is not in the network of %s", n.Gateway, n.Address)
	}
	return nil
}

// Put makes the interface (and the loopback) have exactly this IPv4 address and this default route, whatever was
// there before. namespace is the open network namespace.
func Put(namespace *os.File, n Net) error {
	// A goroutine of its own on a thread of its own that is never unlocked: the Go runtime ends the thread with the
	// goroutine, so that whatever goes wrong no thread in a foreign namespace runs other work.
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("entering %s: %w", n.Netns, err)
			return
		}
		done <- put(n)
	}()
	return <-done
}

// put works in the network namespace of the calling thread.
func put(n Net) error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Delete()
	if lo, err := handle.LinkByName("lo"); err == nil && lo.Attrs().Flags&net.FlagUp == 0 {
		if err := handle.LinkSetUp(lo); err != nil {
			return fmt.Errorf("setting lo up: %w", err)
		}
	}
	link, err := handle.LinkByName(n.Interface)
	if err != nil {
		return fmt.Errorf("interface %s in %s: %w", n.Interface, n.Netns, err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := handle.LinkSetUp(link); err != nil {
			return fmt.Errorf("setting %s up: %w", n.Interface, err)
		}
	}
	if err := putAddress(handle, link, n.Address); err != nil {
		return err
	}
	route := netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(n.Gateway)}
	if err := handle.RouteReplace(&route); err != nil {
		return fmt.Errorf("the default route by %s: %w", n.Gateway, err)
	}
	return nil
}

func putAddress(handle *netlink.Handle, link netlink.Link, address string) error {
	want, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	have, err := handle.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing addresses: %w", err)
	}
	present := false
	for _, addr := range have {
		if addr.IPNet.String() == want.IPNet.String() {
			present = true
			continue
		}
		if err := handle.AddrDel(link, &addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("removing address %s: %w", addr.IPNet, err)
		}
	}
	if present {
		return nil
	}
	if err := handle.AddrAdd(link, want); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding address %s: %w", address, err)
	}
	return nil
}
