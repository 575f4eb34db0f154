// Preloaded into Azurite, which closes a connection that was idle for 5 s: a request that meets that has no answer.
// Azure itself keeps them for minutes, and Azurite's own option for it is read under a name that nobody can set.
const http = require("node:http");
const make = http.createServer;
http.createServer = (...given) =>
  Object.defineProperty(make(...given), "keepAliveTimeout", { get: () => 300_000, set: () => {} });
