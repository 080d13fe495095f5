package procfs

import (
	"encoding/hex"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// DefaultGateways are the gateways of the IPv4 default routes, read afresh.
func DefaultGateways() []netip.Addr {
	data, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil
	}
	return parseGateways(string(data))
}

func parseGateways(table string) []netip.Addr {
	var gateways []netip.Addr
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		// Iface Destination Gateway Flags RefCnt Use Metric Mask ...
		if len(fields) < 8 || fields[1] != "00000000" || fields[7] != "00000000" {
			continue
		}
		if addr, ok := parseHexAddr(fields[2]); ok && !addr.IsUnspecified() {
			gateways = append(gateways, addr)
		}
	}
	return gateways
}

// Listeners are the addresses on which something listens for TCP.
func Listeners() []netip.AddrPort {
	var found []netip.AddrPort
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(name)
		if err == nil {
			found = append(found, parseListeners(string(data))...)
		}
	}
	return found
}

func parseListeners(table string) []netip.AddrPort {
	const stateListen = "0A"
	var found []netip.AddrPort
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != stateListen {
			continue
		}
		hexAddr, hexPort, ok := strings.Cut(fields[1], ":")
		if !ok {
			continue
		}
		addr, addrOK := parseHexAddr(hexAddr)
		port, err := strconv.ParseUint(hexPort, 16, 16)
		if addrOK && err == nil {
			found = append(found, netip.AddrPortFrom(addr, uint16(port)))
		}
	}
	return found
}

// parseHexAddr reads an address as the kernel prints it: 32-bit words in host byte order, which is
// little-endian on every machine this runs on.
func parseHexAddr(text string) (netip.Addr, bool) {
	raw, err := hex.DecodeString(text)
	if err != nil || (len(raw) != 4 && len(raw) != 16) {
		return netip.Addr{}, false
	}
	for word := 0; word < len(raw); word += 4 {
		raw[word], raw[word+1], raw[word+2], raw[word+3] = raw[word+3], raw[word+2], raw[word+1], raw[word]
	}
	addr, ok := netip.AddrFromSlice(raw)
	return addr.Unmap(), ok
}
