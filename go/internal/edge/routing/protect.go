package routing

import (
	"path"
	"strings"
)

// maxDecodings bounds how often a path is percent-decoded while looking for a protected name. Servers behind the edge
// decode once; more is for those that would be fooled by a doubly encoded path.
const maxDecodings = 5

// Protected is a set of first path segments that no client may reach, whatever the spelling.
type Protected []string

// Internal routes of the control plane and of envd.
var (
	ControlPlaneInternal = Protected{"internal"}
	EnvdInternal         = Protected{"internal", "init", "freeze", "unfreeze", "fsfreeze", "fsthaw", "collapse", "upgrade"}
)

// Covers reports whether decoded (a path that was percent-decoded once) leads to a protected name after any number of
// further decodings and cleaning of dots, repeated slashes, backslashes and letter case.
func (p Protected) Covers(decoded string) bool {
	current := decoded
	for range maxDecodings {
		if p.coversCleaned(current) {
			return true
		}
		next := unescape(current)
		if next == current {
			return false
		}
		current = next
	}
	// Encoded more often than any real client does: not worth finding out.
	return true
}

func (p Protected) coversCleaned(raw string) bool {
	cleaned := raw
	if strings.IndexByte(raw, '\\') >= 0 {
		cleaned = strings.ReplaceAll(raw, `\`, "/")
	}
	if strings.Contains(cleaned, "//") || strings.Contains(cleaned, "/.") {
		cleaned = path.Clean(cleaned)
	}
	segment, _, _ := strings.Cut(strings.TrimPrefix(cleaned, "/"), "/")
	segment = strings.TrimFunc(segment, func(r rune) bool { return r <= ' ' || r == 0x7f })
	for _, name := range p {
		if strings.EqualFold(segment, name) {
			return true
		}
	}
	return false
}

// unescape decodes the valid percent escapes of s once and leaves the rest as it is.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			high, okHigh := hexDigit(s[i+1])
			low, okLow := hexDigit(s[i+2])
			if okHigh && okLow {
				out = append(out, high<<4|low)
				i += 2
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
