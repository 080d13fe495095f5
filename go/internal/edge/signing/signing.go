// Package signing checks the signatures of file URLs, which are the only thing that says whose file it is when a
// client uses one shared address.
package signing

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const prefix = "v1_"

// Request is what a signed file URL claims.
type Request struct {
	Path       string
	Operation  string // "read" or "write"
	User       string
	Expiration string // unix seconds, "" if it does not expire
	Signature  string
}

// Parse reads a signed request. ok is false when there is no signature or the method is neither a read nor a write.
func Parse(method, rawQuery string) (req Request, ok bool) {
	switch method {
	case http.MethodGet, http.MethodHead:
		req.Operation = "read"
	case http.MethodPost, http.MethodPut:
		req.Operation = "write"
	default:
		return Request{}, false
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return Request{}, false
	}
	req.Path = query.Get("path")
	req.User = query.Get("username")
	req.Expiration = query.Get("signature_expiration")
	req.Signature = query.Get("signature")
	return req, req.Signature != ""
}

// SignedBy reports whether the signature was made with token. No signature is ever made with an empty token.
func (r Request) SignedBy(token string) bool {
	if token == "" {
		return false
	}
	text := make([]byte, 0, 256)
	text = append(text, r.Path...)
	text = append(text, ':')
	text = append(text, r.Operation...)
	text = append(text, ':')
	text = append(text, r.User...)
	text = append(text, ':')
	text = append(text, token...)
	if r.Expiration != "" {
		text = append(text, ':')
		text = append(text, r.Expiration...)
	}
	sum := sha256.Sum256(text)
	var right [len(prefix) + 43]byte
	copy(right[:], prefix)
	base64.RawStdEncoding.Encode(right[len(prefix):], sum[:])
	return subtle.ConstantTimeCompare(right[:], []byte(r.Signature)) == 1
}

// Expired reports whether the signature is past its time. One that cannot be read counts as expired.
func (r Request) Expired(now time.Time) bool {
	if r.Expiration == "" {
		return false
	}
	at, err := strconv.ParseInt(r.Expiration, 10, 64)
	return err != nil || at < now.Unix()
}
