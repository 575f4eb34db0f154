#!/usr/bin/env python3
"""`jobq serve --certificate --key`: connections that never say a TLS hello are in no count. The bound of docs/http-service.md ("4,000 connections ... one more takes the place of the
one that has been silent for longest", "10 s for a request's head") begins only after the handshake (SlowClientProtocol.connection_made), which may take asyncio's 60 s. A stranger
who only connects fills the descriptors: every worker and the owner are kept out for as long as he keeps connecting (slow_client_limits.py: "Else who only connects, and needs no token
for that, keeps all others out"). The same without TLS is held. Exit 0 when mended, 1 while the fault is there. usage: [--plain]"""
import os, resource, socket, ssl, subprocess, sys, tempfile, threading, time, urllib.request
JOBQ = os.environ["JOBQ"]
PORT = int(os.environ.get("PORT", "18731")); FILES = 4300  # above the 4,100 that the service itself wants
plain = "--plain" in sys.argv
home = tempfile.mkdtemp(prefix="adv_http_"); env = {**os.environ, "JOBQ_HOME": home}
subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", home + "/key", "-out", home + "/crt", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
log = open(home + "/log", "w")
serve = subprocess.Popen([JOBQ, "serve", "demo", "--port", str(PORT), *([] if plain else ["--certificate", home + "/crt", "--key", home + "/key"])], env=env, stdout=log, stderr=log,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)))
ctx = ssl.create_default_context(cafile=home + "/crt")
def health(seconds=8):
    t = time.time()
    try:
        with urllib.request.urlopen(f"{'http' if plain else 'https'}://127.0.0.1:{PORT}/healthz", timeout=seconds, **({} if plain else {"context": ctx})) as a: said = a.status
    except Exception as e: said = repr(e)[:80]
    return said, round(time.time() - t, 2)
def fds(): return len(os.listdir(f"/proc/{serve.pid}/fd"))
try:
    for _ in range(100):
        if health()[0] == 200: break
        time.sleep(0.1)
    print("before:", health(), "descriptors", fds(), flush=True)
    held = []
    for _ in range(4600):
        s = socket.socket(); s.settimeout(5); held.append(s)
        try: s.connect(("127.0.0.1", PORT))
        except OSError: pass
    time.sleep(2)
    said = []
    for _ in range(5):
        said.append(health()); print("4,600 connections that say nothing:", said[-1], "descriptors", fds(), flush=True); time.sleep(2)
    bad = sum(each[0] != 200 for each in said) >= 3
    log.flush(); print("log:", {l.strip()[:120] for l in open(home + "/log") if "accept" in l or "Too many" in l})
    print("FAULT" if bad else "mended"); sys.exit(1 if bad else 0)
finally:
    serve.kill(); serve.wait()
