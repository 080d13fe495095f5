package edge_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forkyard.dev/forkyard/internal/edge"
	"forkyard.dev/forkyard/internal/edge/certs"
)

// authority is a private certificate authority.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{t, cert, key, pool}
}

// issue writes a certificate for names into pair's files.
func (a *authority) issue(pair certs.Pair, serial int64, names ...string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	must(a.t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	must(a.t, err)
	must(a.t, os.WriteFile(pair.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(a.t, os.WriteFile(pair.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
}

func newTLSRig(t *testing.T) (*rig, *authority, certs.Pair) {
	ca := newAuthority(t)
	dir := t.TempDir()
	pair := certs.Pair{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	ca.issue(pair, 2, domain, "*."+domain)
	other := certs.Pair{Cert: filepath.Join(dir, "other.pem"), Key: filepath.Join(dir, "otherkey.pem")}
	ca.issue(other, 3, "*.other.test")
	return newRig(t, func(c *edge.Config) { c.Certs = []certs.Pair{pair, other} }), ca, pair
}

// client speaks to the edge whatever the host is, over HTTP/1.1 or HTTP/2 as ALPN offers.
func (a *authority) client(r *rig, protocols ...string) *http.Client {
	h2 := len(protocols) == 0
	return &http.Client{Timeout: 2 * patience, Transport: &http.Transport{
		ForceAttemptHTTP2: h2, DisableCompression: true,
		TLSClientConfig: &tls.Config{RootCAs: a.pool, NextProtos: protocols},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", r.edge.Addr())
		},
	}}
}

func TestTLSByHostName(t *testing.T) {
	r, ca, _ := newTLSRig(t)
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "%s %s %s", req.Proto, req.Header.Get("X-Forwarded-Proto"), req.Host)
	})
	r.push(running(idA, 1, a.address))
	host := fmt.Sprintf("%d-%s.%s:8443", port, idA, domain)
	for protocol, client := range map[string]*http.Client{"HTTP/2.0": ca.client(r), "HTTP/1.1": ca.client(r, "http/1.1")} {
		res, err := client.Get("https://" + host + "/")
		must(t, err)
		body, _ := io.ReadAll(res.Body)
		if res.Proto != protocol || string(body) != "HTTP/1.1 https "+host {
			t.Errorf("%s: got %s %q", protocol, res.Proto, body)
		}
		res, err = client.Get("https://api." + domain + "/v2")
		must(t, err)
		if body, _ = io.ReadAll(res.Body); string(body) != "api GET /v2" {
			t.Errorf("%s: got %q", protocol, body)
		}
		if _, err := client.Get("https://elsewhere.test/"); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: a foreign name got %v", protocol, err)
		}
	}
	if res, err := ca.client(r).Get("https://x.other.test/"); err != nil || res.TLS.PeerCertificates[0].SerialNumber.Int64() != 3 {
		t.Errorf("the second certificate is not used: %v", err)
	}
}

func TestASecondPortForTLS(t *testing.T) {
	ca := newAuthority(t)
	dir := t.TempDir()
	pair := certs.Pair{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	ca.issue(pair, 2, "*."+domain)
	r := newRig(t, func(c *edge.Config) {
		c.Certs = []certs.Pair{pair}
		c.TLSListen = "127.0.0.1:0"
	})
	a := newSandbox(t)
	port := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, req.Header.Get("X-Forwarded-Proto"))
	})
	r.push(running(idA, 1, a.address))
	r.get("/", to(idA, port)).expect(t, 200, "http")
	_, info := r.call("GET", "/v1/info", nil)
	if !strings.Contains(info, fmt.Sprintf(`"tls_listen":%q`, r.edge.TLSAddr())) {
		t.Errorf("info %s", info)
	}
	client := ca.client(r)
	client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("tcp", r.edge.TLSAddr())
	}
	res, err := client.Get(fmt.Sprintf("https://%d-%s.%s/", port, idA, domain))
	must(t, err)
	if body, _ := io.ReadAll(res.Body); res.Proto != "HTTP/2.0" || string(body) != "https" {
		t.Errorf("got %s %q", res.Proto, body)
	}
}

func TestHTTP2StreamsAreResetAlone(t *testing.T) {
	r, ca, _ := newTLSRig(t)
	a, b := newSandbox(t), newSandbox(t)
	portA := a.serve(0, streams)
	var written atomic.Int64
	floods := a.serve(0, func(w http.ResponseWriter, req *http.Request) {
		buf := make([]byte, 1<<20)
		for req.Context().Err() == nil {
			if _, err := w.Write(buf); err != nil {
				return
			}
			written.Add(1)
		}
	})
	send := make(chan string)
	portB := b.serve(0, func(w http.ResponseWriter, req *http.Request) {
		for text := range send {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
	})
	r.push(running(idA, 1, a.address), running(idB, 1, b.address))
	client := ca.client(r)
	open := func(id string, port int) io.ReadCloser {
		req, err := http.NewRequest("GET", "https://api."+domain+"/", nil)
		must(t, err)
		req.Header = to(id, port)
		res, err := client.Do(req)
		must(t, err)
		if res.Proto != "HTTP/2.0" {
			t.Fatal(res.Proto)
		}
		return res.Body
	}
	dying, unread := open(idA, portA), open(idA, floods)
	last, still := int64(-1), 0
	eventually(t, "every window and buffer on the way is full", func() bool {
		now := written.Load()
		if now != last || now == 0 {
			last, still = now, 0
		}
		still++
		return still > 50
	})
	go func() { send <- "one" }()
	living := open(idB, portB)
	buf := make([]byte, 10)
	if n, err := io.ReadFull(living, buf[:3]); err != nil {
		t.Fatal(n, err)
	}
	started := time.Now()
	r.remove(idA, 1)
	if took := time.Since(started); took > time.Second {
		t.Errorf("removal took %v", took)
	}
	if _, text := r.call("GET", "/metrics", nil); !strings.Contains(text, "forkyard_edge_open_streams 1\n") {
		t.Error("a stream of the removed sandbox is still there")
	}
	for name, body := range map[string]io.Reader{"idle": dying, "flooding": unread} {
		if _, err := io.Copy(io.Discard, body); err == nil || !strings.Contains(err.Error(), "stream error") {
			t.Errorf("%s: the stream of the removed sandbox ended with %v", name, err)
		}
	}
	go func() { send <- "two"; close(send) }()
	if rest, err := io.ReadAll(living); err != nil || string(rest) != "two" {
		t.Errorf("the other stream of the connection: %q %v", rest, err)
	}
	// The connection itself lives on: the next answer comes over it.
	req, _ := http.NewRequest("GET", "https://api."+domain+"/health", nil)
	req.Header = to(idA, 49983)
	res, err := client.Do(req)
	must(t, err)
	if body, _ := io.ReadAll(res.Body); res.StatusCode != 502 || !strings.Contains(string(body), "was not found") {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
}

func TestTLSStreamsAreReset(t *testing.T) {
	r, ca, _ := newTLSRig(t)
	a := newSandbox(t)
	port := a.serve(0, streams)
	r.push(running(idA, 1, a.address))
	req, err := http.NewRequest("GET", fmt.Sprintf("https://%d-%s.%s/", port, idA, domain), nil)
	must(t, err)
	res, err := ca.client(r, "http/1.1").Do(req)
	must(t, err)
	r.remove(idA, 1)
	if _, err := io.Copy(io.Discard, res.Body); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestUpgradeOverTLS(t *testing.T) {
	r, ca, _ := newTLSRig(t)
	a := newSandbox(t)
	port := a.raw(0, echoUpgrade)
	r.push(running(idA, 1, a.address))
	c, err := tls.Dial("tcp", r.edge.Addr(), &tls.Config{RootCAs: ca.pool, ServerName: "api." + domain})
	must(t, err)
	defer func() { _ = c.Close() }()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %d-%s.%s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", port, idA, domain)
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 101 ") {
		t.Fatalf("%q %v", buf[:n], err)
	}
	_, err = io.WriteString(c, "over TLS")
	must(t, err)
	if n, err = io.ReadFull(c, buf[:8]); string(buf[:n]) != "over TLS" {
		t.Errorf("%q %v", buf[:n], err)
	}
}

func TestHTTP2OwnLimits(t *testing.T) {
	r, ca, _ := newTLSRig(t)
	req, err := http.NewRequest("GET", "https://api."+domain+"/", nil)
	must(t, err)
	req.Header.Set("X-Long", strings.Repeat("x", 150<<10))
	res, err := ca.client(r).Do(req)
	must(t, err)
	if res.StatusCode != 431 {
		t.Errorf("got %d", res.StatusCode)
	}
}

func TestCertificatesAreReloaded(t *testing.T) {
	r, ca, pair := newTLSRig(t)
	serial := func() int64 {
		c, err := tls.Dial("tcp", r.edge.Addr(), &tls.Config{RootCAs: ca.pool, ServerName: "api." + domain})
		must(t, err)
		defer func() { _ = c.Close() }()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if n := serial(); n != 2 {
		t.Fatalf("serial %d", n)
	}
	ca.issue(pair, 7, "*."+domain)
	eventually(t, "the new certificate is used", func() bool { return serial() == 7 })
	must(t, os.WriteFile(pair.Cert, []byte("broken"), 0o600))
	r.edge.Reload()
	if n := serial(); n != 7 {
		t.Errorf("a broken file replaced the certificate: serial %d", n)
	}
	ca.issue(pair, 8, "*."+domain)
	r.edge.Reload()
	if n := serial(); n != 8 {
		t.Errorf("serial %d", n)
	}
}
