"""A worker in `auto` whose metadata service answers its FIRST request with 429 (or 500) never hears of a preemption.

Exit 0 when mended (the task is given back, exit code/counter of a preemption), non-zero while the fault is there.
"""
import http.server, json, os, subprocess, sys, tempfile, threading, time
JOBQ = os.environ["JOBQ"]
STATUS = int(sys.argv[1]) if len(sys.argv) > 1 else 429
calls = []
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        calls.append(self.path)
        if len(calls) == 1 and STATUS != 200:
            self.send_response(STATUS); self.send_header("Retry-After", "1"); self.send_header("Content-Length", "0"); self.end_headers(); return
        body = b"vm0" if "scheduledevents" not in self.path else json.dumps(
            {"DocumentIncarnation": 1, "Events": [{"EventId": "E", "EventType": "Preempt", "ResourceType": "VirtualMachine",
             "Resources": ["vm0"], "EventStatus": "Scheduled", "NotBefore": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 30))}]}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
threading.Thread(target=server.serve_forever, daemon=True).start()
env = {**os.environ, "JOBQ_HOME": tempfile.mkdtemp(), "JOBQ_IMDS_URL": f"http://127.0.0.1:{server.server_port}", "JOBQ_SCHEDULED_EVENTS": "auto"}
subprocess.run([JOBQ, "-q", "demo", "push", "-c", "sleep 40"], env=env, check=True)
w = subprocess.Popen([JOBQ, "demo", "worker", "--log-format", "text", "--stop-grace", "1s"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
time.sleep(12)
w.terminate(); _, err = w.communicate(timeout=30)
print("requests:", calls); print(err)
heard = "notice" in err.lower() or "preempt" in err.lower()
print("heard of the preemption:", heard)
sys.exit(0 if heard else 1)
