package signing

import (
	"net/url"
	"testing"
	"time"
)

const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

// The vector of the E2B protocol notes.
const vector = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"

func query(pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return q.Encode()
}

func TestVector(t *testing.T) {
	whole := query("path", "hello.txt", "username", "user", "signature", vector)
	for _, method := range []string{"GET", "HEAD"} {
		req, ok := Parse(method, whole)
		if !ok || !req.SignedBy(token) {
			t.Errorf("%s: the right signature is wrong", method)
		}
	}
	for name, c := range map[string]struct{ method, query, token string }{
		"other token":      {"GET", whole, token + "x"},
		"empty token":      {"GET", whole, ""},
		"other operation":  {"POST", whole, token},
		"other path":       {"GET", query("path", "hello.txt2", "username", "user", "signature", vector), token},
		"other user":       {"GET", query("path", "hello.txt", "username", "root", "signature", vector), token},
		"no user":          {"GET", query("path", "hello.txt", "signature", vector), token},
		"added expiration": {"GET", whole + "&signature_expiration=99999999999", token},
		"cut":              {"GET", query("path", "hello.txt", "username", "user", "signature", vector[:40]), token},
		"no prefix":        {"GET", query("path", "hello.txt", "username", "user", "signature", vector[3:]), token},
	} {
		if req, ok := Parse(c.method, c.query); ok && req.SignedBy(c.token) {
			t.Errorf("%s: taken for right", name)
		}
	}
	for _, c := range [][2]string{{"GET", "path=x"}, {"DELETE", whole}, {"GET", "signature=%zz"}, {"GET", "signature="}} {
		if _, ok := Parse(c[0], c[1]); ok {
			t.Errorf("%v: parsed", c)
		}
	}
}

func TestExpired(t *testing.T) {
	now := time.Unix(1000, 0)
	for expiration, want := range map[string]bool{"": false, "999": true, "1000": false, "1001": false, "soon": true, "-1": true} {
		if (Request{Expiration: expiration}).Expired(now) != want {
			t.Errorf("%q: expired is %v", expiration, !want)
		}
	}
}

func BenchmarkSignedBy(b *testing.B) {
	req, _ := Parse("GET", query("path", "hello.txt", "username", "user", "signature", vector))
	b.ReportAllocs()
	for b.Loop() {
		if !req.SignedBy(token) {
			b.Fatal("wrong")
		}
	}
}
