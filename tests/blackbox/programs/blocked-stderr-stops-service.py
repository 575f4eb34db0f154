#!/usr/bin/env python3
"""`jobq serve` writes its audit to standard error on the event loop. When who reads that pipe stops reading (`jobq serve 2>&1 | less`, a stopped `tee`, a log collector that hangs), some 250 changes
fill it and the whole service stands still for ever: no heartbeat is answered, SIGTERM is not heard, all workers lose their leases and kill their tasks. Exit 0 when mended, 1 while the fault is there."""
import json, os, subprocess, sys, tempfile, time, urllib.request
JOBQ = os.environ["JOBQ"]; PORT = int(os.environ.get("PORT", "18719")); B = f"http://127.0.0.1:{PORT}"
home = tempfile.mkdtemp(prefix="adv_http_"); env = {**os.environ, "JOBQ_HOME": home}
reader, writer = os.pipe()
serve = subprocess.Popen([JOBQ, "serve", "demo", "--port", str(PORT)], env=env, stdout=subprocess.DEVNULL, stderr=writer); os.close(writer)
def health(seconds=8):
    t = time.time()
    try:
        with urllib.request.urlopen(B + "/healthz", timeout=seconds) as a: return a.status
    except OSError as e: return repr(e)[:60]
try:
    for _ in range(100):
        if health() == 200: break
        time.sleep(0.1)
    owner = open(f"{home}/serve/{PORT}.token").read(); done = 0
    for k in range(1500):
        r = urllib.request.Request(f"{B}/api/tasks?queue=demo", json.dumps({"tasks": [{"command": "true"}]}).encode(), {"Authorization": "Bearer " + owner, "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(r, timeout=8) as a: done += 1
        except OSError as e: print(f"push {k + 1}: {e!r}"); break
    print("pushes answered:", done, "| health:", health(), flush=True)
    bad = done < 1500 or health() != 200
    t = time.time(); serve.terminate()
    try: print("SIGTERM: ended with", serve.wait(25), "after %.1f s" % (time.time() - t))
    except subprocess.TimeoutExpired: print("SIGTERM: still there after 25 s"); bad = True
    print("FAULT" if bad else "mended"); sys.exit(1 if bad else 0)
finally: serve.kill(); serve.wait()
