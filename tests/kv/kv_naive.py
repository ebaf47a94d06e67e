"""A naive model of SGLang's cache: plain token lists, one object per node, every leaf collected at every eviction.

Written from the rules as the engine states them (a clock reading per node, a second match after an insert, a second
insert of the prompt, lock counts on every ancestor), so that it shares no shortcut with ``kvsim.kv``. For small worlds.
"""

from __future__ import annotations


class N:
    def __init__(self, key, parent, now):
        self.key, self.parent, self.kids = list(key), parent, []
        self.dev = self.host = False
        self.lock = self.hits = self.prio = self.loading = 0
        self.last = self.created = now

    def below(self):
        for kid in self.kids:
            yield kid
            yield from kid.below()

    def path(self):
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class Naive:
    """The cache and the recordings' driver over it. ``old``: 0.5.9 (two write_back defects repaired), else 0.5.23."""

    def __init__(self, *, old, page, device, host, policy, eviction, write_delay, load_delay, requests, threshold=10):
        self.old, self.p, self.policy, self.eviction = old, page, policy, eviction
        self.free = self.device = device // page * page
        self.hfree = self.hosttotal = host // page * page
        self.hi = host > 0
        self.wb = self.hi and policy == "write_back"
        self.wd, self.ld, self.threshold = write_delay, load_delay, threshold
        self.time, self.number = 0, 1
        self.root = N([], None, 0)
        self.root.dev = self.root.host = True
        self.root.lock = 1
        self.now = 0
        self.wqueue, self.writes, self.lqueue, self.loads, self.dups = [], [], [], [], []
        self.c = dict.fromkeys(("dem", "drop", "hev", "hdup", "wt", "wfail", "lfail"), 0)
        self.r = {}
        for i, (toks, out, prio) in requests.items():
            self.r[i] = {"toks": list(toks), "n": len(toks), "out": out, "prio": prio, "k": 0}
            self.r[i].update(node=None, owned=0, committed=0, inserted=0)

    # ---- tree ----

    def tick(self):
        self.time += 1
        return self.time

    def all(self):
        return list(self.root.below())

    def find(self, node, key):
        for kid in node.kids:
            if kid.key[: self.p] == key[: self.p]:
                return kid
        return None

    def same(self, a, b):
        n = 0
        while n + self.p <= min(len(a), len(b)) and a[n : n + self.p] == b[n : n + self.p]:
            n += self.p
        return n

    def split(self, c, n):
        up = N(c.key[:n], c.parent, self.tick())
        if not self.old:
            up.created = c.created
        up.dev, up.host, up.lock, up.hits, up.prio, up.loading = c.dev, c.host, c.lock, c.hits, c.prio, c.loading
        c.parent.kids[c.parent.kids.index(c)] = up
        up.kids = [c]
        c.parent, c.key = up, c.key[n:]
        if not self.old:
            c.last = self.tick()
        self.note(up)
        return up

    def match(self, toks):
        key = toks[: len(toks) // self.p * self.p]
        node, once = self.root, self.tick()
        while key:
            kid = self.find(node, key)
            if kid is None or not (kid.dev or kid.host):
                break
            if self.old:
                kid.last = self.tick() if self.hi else once
            n = self.same(kid.key, key)
            if n < len(kid.key):
                node = self.split(kid, n)
                break
            node, key = kid, key[n:]
        if not self.old:
            t = self.tick()
            for i, up in enumerate(node.path()):
                up.last = t - i * 1e-5
        dnode, host = node, 0
        while not dnode.dev:
            host += len(dnode.key)
            dnode = dnode.parent
        return dnode, node, sum(len(x.key) for x in dnode.path()), host

    def insert(self, q, key, *, chunked, prio, inserted):
        """Return the last node and how many tokens of the caller's slots went into the tree."""
        counts = not self.wb and not (self.old and chunked) and (self.hi or not self.old)
        node, at, took, once = self.root, 0, 0, self.tick()
        while at < len(key):
            kid = self.find(node, key[at:])
            if kid is None:
                break
            kid.last = once if self.old and not self.hi else self.tick()
            n = self.same(kid.key, key[at:])
            if self.old and self.hi:
                kid.prio = max(kid.prio, prio)
            if n < len(kid.key):
                kid = self.split(kid, n)
            kid.prio = max(kid.prio, prio)
            node, at = kid, at + n
            fresh = not kid.dev
            if fresh:
                kid.dev = True
                took += n
                self.note(kid)
            if counts and at > inserted and not (fresh and self.old):
                self.hit(kid)
        if at < len(key):
            leaf = N(key[at:], node, self.tick())
            leaf.created = self.tick()
            leaf.dev, leaf.prio = True, prio
            node.kids.append(leaf)
            took += len(leaf.key)
            node = leaf
            if counts:
                self.hit(leaf)
        return node, took

    def hit(self, node):
        node.hits += 1
        if self.hi and not node.host and node.hits >= (1 if self.policy == "write_through" else 2):
            chain = [node]
            while not self.old and not chain[-1].parent.host:
                chain.append(chain[-1].parent)
            for x in reversed(chain):
                if not self.take_host(x):
                    break
                self.inc(x)
                self.wqueue.append(x)
                if self.old:
                    self.submit()

    def inc(self, node):
        for x in node.path():
            x.lock += 1

    def dec(self, node):
        for x in node.path():
            x.lock -= 1
            assert x.lock >= 0

    # ---- eviction ----

    def rank(self, x):
        return {
            "lru": (x.last,), "lfu": (x.hits, x.last), "fifo": (x.created, x.last), "mru": (-x.last,),
            "filo": (-x.created, x.last), "priority": (x.prio, x.last), "slru": (x.hits >= 2, x.last),
        }[self.eviction]

    def evict(self, n):
        got, gone, stuck = 0, [], []
        while got < n:
            leaves = [x for x in self.all() if x.dev and not x.lock and x not in gone and x not in stuck
                      and not any(k.dev and k not in gone for k in x.kids)]
            if not leaves:
                break
            x = min(leaves, key=self.rank)
            if x.host:
                self.demote(x)
            elif not self.wb:
                self.dropped(x)
            elif not self.take_host(x):
                if self.old:
                    stuck.append(x)
                    continue
                self.dropped(x)
            elif self.old:
                gone.append(x)
            else:
                self.note(x)
                self.demote(x)
            got += len(x.key)
        for x in gone:
            self.demote(x)
        return got

    def demote(self, x):
        x.dev = False
        self.free += len(x.key)
        self.c["dem"] += len(x.key)

    def dropped(self, x):
        self.free += len(x.key)
        self.c["drop"] += len(x.key)
        for y in x.below():
            self.hfree += len(y.key)
            self.c["hev"] += len(y.key)
            y.dev = y.host = False
        x.dev = x.host = False
        x.parent.kids.remove(x)

    def evict_host(self, n):
        got = 0
        if self.wb and not self.old:
            for leaves_too in (False, True):
                for x in list(self.dups):
                    if got >= n:
                        break
                    if not (x.dev and x.host):
                        self.dups.remove(x)
                        continue
                    leaf = not x.lock and not any(k.dev for k in x.kids)
                    if not x.loading and (leaves_too or not leaf):
                        x.host = False
                        self.dups.remove(x)
                        self.hfree += len(x.key)
                        self.c["hdup"] += len(x.key)
                        got += len(x.key)
        while got < n:
            leaves = [x for x in self.all() if x.host and not x.dev and not x.kids and not x.lock]
            if not leaves:
                break
            x = min(leaves, key=self.rank)
            x.host = False
            x.parent.kids.remove(x)
            self.hfree += len(x.key)
            self.c["hev"] += len(x.key)
            got += len(x.key)
        return got

    def take_host(self, x):
        n = len(x.key)
        if self.hfree < n:
            self.c["wfail"] += self.old
            self.evict_host(n if self.old else n - self.hfree)
            if self.hfree < n:
                self.c["wfail"] += 1
                return False
        self.hfree -= n
        self.c["wt"] += n
        x.host = True
        return True

    def note(self, x):
        if self.wb and not self.old:
            ok = x.dev and x.host and not x.loading
            if ok and x not in self.dups:
                self.dups.append(x)
            elif not ok and x in self.dups:
                self.dups.remove(x)

    def room(self, n):
        if self.free < n:
            self.evict(n if self.old else n - self.free)

    # ---- transfers ----

    def submit(self):
        if self.wqueue:
            self.writes.append((self.now + self.wd, self.wqueue))
            self.wqueue = []

    def check(self, op=None):
        self.submit()
        while self.writes and self.writes[0][0] <= self.now:
            for x in self.writes.pop(0)[1]:
                self.dec(x)
        while self.loads and self.loads[0][0] <= self.now:
            for number, x in self.loads.pop(0)[1]:
                self.dec(x)
                for y in x.path():
                    if y.loading == number:
                        y.loading = 0
                    self.note(y)
        return {}

    def load_back(self, best, n):
        if n < self.threshold:
            return 0
        self.inc(best)
        if self.free < n:
            self.c["lfail"] += self.old
            self.evict(n if self.old else n - self.free)
            if self.free < n:
                self.c["lfail"] += 1
                self.dec(best)
                return 0
        self.free -= n
        for x in best.path():
            if not x.dev:
                x.dev, x.loading = True, self.number
        self.lqueue.append((self.number, best))
        self.number += 1
        return n

    # ---- the recordings' driver ----

    def step(self, op):
        self.now += 1
        before = dict(self.c)
        got = getattr(self, {"evict": "do_evict", "evict_host": "do_evict_host"}.get(op["op"], op["op"]))(op)
        got.update({k: v - before[k] for k, v in self.c.items() if v != before[k]})
        nodes = self.all()
        ev = sum(len(x.key) for x in nodes if x.dev and not x.lock)
        pr = sum(len(x.key) for x in nodes if x.dev and x.lock)
        flight = len(self.wqueue) + sum(len(w) for _, w in self.writes)
        got["s"] = [self.device - self.free, ev, pr, self.hosttotal - self.hfree, flight,
                    len(self.lqueue) + sum(len(x) for _, x in self.loads)]
        got["tree"] = self.dump()
        return got

    def dump(self):
        rows = []

        def walk(node, above):
            for kid in sorted(node.kids, key=lambda x: x.key[: self.p]):
                rows.append([above, len(kid.key), kid.key[0], int(kid.dev), int(kid.host), kid.lock, kid.hits])
                walk(kid, len(rows))

        walk(self.root, 0)
        return rows

    def up(self, n):
        return -(-n // self.p) * self.p

    def text(self, q):
        return q["toks"] + [q["out"] + i for i in range(q["k"])]

    def peek(self, op):
        _, _, dev, host = self.match(self.text(self.r[op["r"]])[:-1])
        return {"dev": dev, "host": host}

    def admit(self, op):
        q = self.r[op["r"]]
        if op.get("chk"):
            self.check()
        toks = self.text(q)
        dnode, best, dev, host = self.match(toks[:-1])
        got = {"dev": dev, "host": host}
        self.inc(dnode)
        evictable = sum(len(x.key) for x in self.all() if x.dev and not x.lock)
        if len(toks) - dev + self.p > self.free + evictable:
            self.dec(dnode)
            return got | {"adm": 0}
        loaded = got["load"] = self.load_back(best, host) if host else 0
        if not host:
            del got["load"]
        q["node"] = best if loaded else dnode
        self.inc(q["node"])
        self.dec(dnode)
        q.update(owned=dev + loaded, committed=dev + loaded, inserted=0)
        if self.lqueue:
            self.loads.append((self.now + self.ld, self.lqueue))
            self.lqueue = []
        rest, chunk = len(toks) - dev - loaded, op.get("chunk")
        if chunk and rest > chunk:
            rest = min(rest, max(chunk // self.p * self.p, self.p))
        self.grow(q, rest)
        return got | {"adm": 1, "n": rest}

    def grow(self, q, n):
        self.room(n + (self.p if self.p > 1 else 0))
        self.free -= self.up(q["committed"] + n) - self.up(q["committed"])
        assert self.free >= 0
        q["committed"] += n

    def store(self, q, upto, *, chunked):
        k = upto // self.p * self.p
        key = self.text(q)[:k]
        end, took = self.insert(q, key, chunked=chunked, prio=q["prio"], inserted=0 if self.old else q["inserted"])
        self.free += k - q["owned"] - took
        q["inserted"] = max(q["inserted"], k)
        prompt = q["n"] // self.p * self.p
        if self.old:
            self.match(key)
        elif 0 < prompt < k:
            _, extra = self.insert(q, key[:prompt], chunked=True, prio=q["prio"] + 1, inserted=prompt)
            assert not extra
        old, q["node"], q["owned"] = q["node"], end, k
        self.inc(end)
        self.dec(old)

    def chunk(self, op):
        q = self.r[op["r"]]
        self.store(q, q["committed"], chunked=True)
        if op["n"]:
            self.grow(q, op["n"])
        return {"n": op["n"], "prefix": q["owned"]}

    def prefilled(self, op):
        q = self.r[op["r"]]
        self.store(q, len(self.text(q)), chunked=False)
        q["k"] += 1
        self.submit()
        return {"prefix": q["owned"]}

    def decode(self, op):
        qs, done = [self.r[r] for r in op["rs"]], 0
        for _ in range(op["k"]):
            need = self.p * sum(q["committed"] % self.p == 0 for q in qs)
            self.room(need)
            if self.free < need:
                break
            self.room(self.p * len(qs))
            for q in qs:
                self.free -= self.up(q["committed"] + 1) - self.up(q["committed"])
                q["committed"] += 1
                q["k"] += 1
            done += 1
        if done:
            self.submit()
        return {"done": done}

    def finish(self, op):
        q = self.r[op["r"]]
        kv = q["committed"]
        self.store(q, kv, chunked=False)
        self.leave(q)
        self.submit()
        return {"kv": kv}

    def leave(self, q):
        self.free += self.up(q["committed"]) - q["owned"]
        self.dec(q["node"])
        q.update(node=None, owned=0, committed=0, inserted=0)

    def retract(self, op):
        q = self.r[op["r"]]
        kv = q["committed"]
        self.leave(q)
        return {"kv": kv}

    def do_evict(self, op):
        return {"ret": self.evict(op["n"])}

    def do_evict_host(self, op):
        got = self.evict_host(op["n"])
        return {"ret": got} if "ret" in op else {}
