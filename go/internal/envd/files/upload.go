package files

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"forkyard.dev/forkyard/internal/envd/access"
)

const (
	// bodyIdle is how long an upload may send nothing.
	bodyIdle = 5 * time.Minute
	// drainLimit and drainTime bound what is read of a body that was refused. Without reading it the
	// client would see a reset connection in place of the reason.
	drainLimit = 16 << 30
	drainTime  = 2 * time.Minute
	maxParts   = 10000
)

// stored is what the answer says of one file: these keys and no others.
type stored struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// patientBody gives each read of a body its own deadline.
type patientBody struct {
	body    io.Reader
	control *http.ResponseController
}

func (b patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(bodyIdle))
	return b.body.Read(p)
}

func (h *Handler) upload(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	results, err := h.receive(r, patientBody{r.Body, control})
	if err != nil {
		drain(r.Body, control)
		var ended *bodyError
		if errors.As(err, &ended) {
			return fail(http.StatusBadRequest, "%v", ended)
		}
		return err
	}
	return writeJSON(w, results)
}

func drain(body io.Reader, control *http.ResponseController) {
	_ = control.SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, body, drainLimit)
}

// receive stores what the request carries.
func (h *Handler) receive(r *http.Request, raw io.Reader) ([]stored, error) {
	req, err := h.begin(r, access.Write)
	if err != nil {
		return nil, err
	}
	metadata, err := readMetadata(r.Header)
	if err != nil {
		return nil, err
	}
	body := io.Reader(honestReader{raw})
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, fail(http.StatusBadRequest, "the body is not valid gzip: %v", err)
		}
		body = honestReader{unzipped}
	default:
		return nil, fail(http.StatusBadRequest, "unsupported content encoding '%s', supported: [identity, gzip]", encoding)
	}
	mediaType, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, fail(http.StatusBadRequest, "the content type cannot be read: %v", err)
	}
	one := content{user: req.user, metadata: metadata, body: body}
	switch mediaType {
	case "application/octet-stream":
		if req.query.Get("path") == "" {
			return nil, fail(http.StatusBadRequest, "an upload as application/octet-stream needs the query parameter path")
		}
		result, err := h.storeOne(req, one, req.query.Get("path"))
		return []stored{result}, err
	case "multipart/form-data":
		return h.receiveParts(req, one, multipart.NewReader(body, params["boundary"]))
	default:
		return nil, fail(http.StatusBadRequest, "unsupported content type '%s', supported: [multipart/form-data, application/octet-stream]", mediaType)
	}
}

func (h *Handler) receiveParts(req request, one content, parts *multipart.Reader) ([]stored, error) {
	results := []stored{}
	taken := map[string]bool{}
	for range maxParts {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return results, nil
		}
		if err != nil {
			return nil, &bodyError{err}
		}
		if part.FormName() != "file" {
			continue
		}
		name, err := partPath(req, part)
		if err != nil {
			return nil, err
		}
		path, err := req.resolve(name)
		if err != nil {
			return nil, err
		}
		if taken[path] {
			return nil, fail(http.StatusBadRequest, "the upload names the path '%s' twice", path)
		}
		taken[path] = true
		one.body = honestReader{part}
		result, err := h.storeOne(req, one, name)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return nil, fail(http.StatusBadRequest, "an upload can hold %d files at most", maxParts)
}

// partPath is the path of the query, else the whole file name of the part: with its slashes, which
// multipart.Part.FileName would cut off.
func partPath(req request, part *multipart.Part) (string, error) {
	if path := req.query.Get("path"); path != "" {
		return path, nil
	}
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil || params["filename"] == "" {
		return "", fail(http.StatusBadRequest, "a part of the upload names no file")
	}
	return params["filename"], nil
}

func (h *Handler) storeOne(req request, one content, name string) (stored, error) {
	var err error
	if one.path, err = req.resolve(name); err != nil {
		return stored{}, err
	}
	if err := h.store(one); err != nil {
		return stored{}, err
	}
	return stored{Name: filepath.Base(one.path), Path: one.path, Type: "file", Metadata: one.metadata}, nil
}

func writeJSON(w http.ResponseWriter, answer any) error {
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
	return nil
}
