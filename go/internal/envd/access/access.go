// Package access decides who may call envd, and as which user of the sandbox a call runs.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/procfs"
	"forkyard.dev/forkyard/internal/envd/settings"
	"forkyard.dev/forkyard/internal/envd/users"
)

// TokenHeader carries the access token of the sandbox.
const TokenHeader = "X-Access-Token"

// UnauthorizedMessage is what the SDKs show when the token is missing or wrong.
const UnauthorizedMessage = "unauthorized access, please provide a valid access token or method signing if supported"

// HasToken says whether the request may use everything but internal routes.
func HasToken(r *http.Request, current *settings.Settings) bool {
	if current.AccessToken == "" {
		return true
	}
	return subtle.ConstantTimeCompare([]byte(r.Header.Get(TokenHeader)), []byte(current.AccessToken)) == 1
}

// Operation is what a signature allows.
type Operation string

// The operations of signed URLs.
const (
	Read  Operation = "read"
	Write Operation = "write"
)

// FileAccess checks a request for /files: a token if one is sent, else the signature in the query. The
// error's text is the answer's message.
func FileAccess(r *http.Request, query url.Values, operation Operation, current *settings.Settings, now time.Time) error {
	if current.AccessToken == "" {
		return nil
	}
	if r.Header.Get(TokenHeader) != "" {
		if HasToken(r, current) {
			return nil
		}
		return errors.New(UnauthorizedMessage)
	}
	signature := query.Get("signature")
	if signature == "" {
		return errors.New("missing signature query parameter")
	}
	expiration := query.Get("signature_expiration")
	want := sign(query.Get("path"), operation, query.Get("username"), current.AccessToken, expiration)
	if subtle.ConstantTimeCompare([]byte(signature), []byte(want)) != 1 {
		return errors.New("invalid signature")
	}
	if expiration == "" {
		return nil
	}
	seconds, err := strconv.ParseInt(expiration, 10, 64)
	if err != nil {
		return errors.New("invalid signature expiration")
	}
	if seconds < now.Unix() {
		return errors.New("signature is already expired")
	}
	return nil
}

// sign makes the signature of a URL; an empty expiration means it has none.
func sign(path string, operation Operation, username, token, expiration string) string {
	text := path + ":" + string(operation) + ":" + username + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// User is the user of an RPC: the one of its Authorization header, else the default. The error has code
// unauthenticated.
func User(r *http.Request, current *settings.Settings) (users.User, error) {
	name, _, _ := r.BasicAuth()
	return UserNamed(name, current)
}

// UserNamed looks a user up; an empty name is the default user.
func UserNamed(name string, current *settings.Settings) (users.User, error) {
	if name == "" {
		name = current.DefaultUser
	}
	if name == "" {
		if user, err := users.System.Lookup("user"); err == nil {
			return user, nil
		}
		name = "root"
	}
	user, err := users.System.Lookup(name)
	if err != nil {
		return users.User{}, connect.Errorf(connect.CodeUnauthenticated, "%v", err)
	}
	return user, nil
}

// Internal decides which peers may call the internal routes: the default gateway of the sandbox, and
// those given at start for tests.
type Internal struct{ Extra []netip.Addr }

// Allows says whether the request comes from such a peer. The route table is read for each request,
// since a restore may bring another network.
func (i Internal) Allows(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := peer.Addr().Unmap().WithZone("")
	for _, allowed := range i.Extra {
		if addr == allowed {
			return true
		}
	}
	for _, gateway := range procfs.DefaultGateways() {
		if addr == gateway {
			return true
		}
	}
	return false
}
