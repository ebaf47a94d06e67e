"""The two halves of an engine pass in v1/core/sched/scheduler.py: schedule and update_from_output."""

from __future__ import annotations

from kvsim.rules.vllm import PRIORITY
from kvsim.serving.port import Settled
from kvsim.serving.vllm.admission import Admission
from kvsim.serving.vllm.state import ENDED, RUNNING, VllmRequest, VllmStep


class Passes(Admission):
    """Running requests first, then waiting ones, from one token budget."""

    def schedule(self, now: int) -> VllmStep:
        """Decide one pass: what runs, with how many tokens, in which blocks. The step is empty if nothing can run."""
        self.number += 1
        self.now = now
        step = VllmStep("idle", self.number)
        if self.entangling:
            self.entangling = False
            self.dissolve()
        left = self._run_all(step, self.params.max_num_batched_tokens)
        if left < 0:
            self.dissolve()
            left = self._schedule_running(step, self.params.max_num_batched_tokens)
        self.refused = False
        if not step.preempted:
            self._schedule_waiting(step, left)
        self._after(step)
        if self.connector.present:
            self.connector.build(step, now)
        if step.work or step.cohort:
            step.kind = "decode" if not step.prefills else "mixed" if step.decode_batch else "prefill"
        return step

    def _wanted(self, request: VllmRequest, budget: int) -> int:
        """Tokens a running request would compute with this budget; 0: it is passed over."""
        flying = request.in_flight
        if flying and request.computed + 2 - flying >= request.total_limit:
            return 0  # async: its last token is in flight
        count = request.prompt + request.output_done + flying - request.computed
        threshold = self.params.long_prefill_token_threshold
        if 0 < threshold < count:
            count = threshold
        return min(count, budget, self.params.max_model_len - 1 - request.computed)

    def _run_all(self, step: VllmStep, budget: int) -> int:
        """Schedule every running request if there is enough for all; return the budget left, or -1 (nothing done).

        Only the last running request may get less than it wants. Amounts do not depend on the order then.
        """
        cohort = self.cohort
        left = budget - cohort.count
        if not self.special:
            need = cohort.need([]) if cohort.count else 0
            if left < 0 or need > self.pool.free:
                return -1
            self._tick(step, [], need)
            return left
        joining: list[VllmRequest] = []
        others: list[tuple[VllmRequest, int]] = []
        for request in self.special:
            if self._lets_go and cohort.can_join(request) and self.connector.indifferent(request):
                joining.append(request)
                left -= 1
            else:
                count = self._wanted(request, budget)
                if count > 0:
                    others.append((request, count))
                    left -= count
        if left < 0:
            if not others or others[-1][0] is not self.running[-1] or others[-1][1] + left < 1:
                return -1
            others[-1] = (others[-1][0], others[-1][1] + left)
            left = 0
        size = self.params.block_size
        needs = [max(-(-(request.computed + count) // size) - request.table.held, 0) for request, count in others]
        need = cohort.need(joining) if joining or cohort.count else 0
        if need + sum(needs) > self.pool.free:
            return -1
        self._tick(step, joining, need)
        for (request, count), blocks in zip(others, needs, strict=True):
            self._allocate(request, blocks, count)
            step.work.append((request, count, False))
        return left

    def _tick(self, step: VllmStep, joining: list[VllmRequest], need: int) -> None:
        cohort = self.cohort
        for request in joining:
            cohort.join(request)
        if joining:
            self.special = [request for request in self.special if request.joined < 0]
        if not cohort.count:
            return
        cohort.start_tick()
        if need:
            self.pool.pop(need)
        step.cohort = cohort.count
        self._cohort_step = step.number

    def _schedule_running(self, step: VllmStep, budget: int) -> int:
        index, size, running = 0, self.params.block_size, self.running
        while index < len(running) and budget > 0:
            request = running[index]
            count = self._wanted(request, budget)
            if count <= 0:
                index += 1
                continue
            need = -(-(request.computed + count) // size) - request.table.held
            while need > self.pool.free:
                victim = self._victim()
                back = self._unschedule(step, victim)
                if back:
                    budget += back
                    index -= 1
                self._preempt(step, victim)
                if victim is request:
                    return budget
            self._allocate(request, need, count)
            step.work.append((request, count, False))
            budget -= count
            index += 1
        return budget

    def _victim(self) -> VllmRequest:
        if self.params.policy != PRIORITY:
            return self.running[-1]
        return max(self.running, key=VllmRequest.rank)

    def _unschedule(self, step: VllmStep, victim: VllmRequest) -> int:
        for at, (request, count, _) in enumerate(step.work):
            if request is victim:
                del step.work[at]
                return count
        return 0

    # ------------------------------------------------------------------ after the decisions, after the forward
    def _after(self, step: VllmStep) -> None:
        """Count the scheduled tokens as computed and see which requests sample (_update_after_schedule)."""
        cohort = self.cohort
        if step.cohort:
            step.decode_batch, step.sum_context = step.cohort, cohort.context
            step.max_context = cohort.longest_context()
            cohort.finish_plan()
        for at, (request, count, _) in enumerate(step.work):
            start = request.computed
            request.computed = end = start + count
            request.step = step.number
            goal = request.known + request.in_flight
            sampled = end == goal
            if sampled:
                self.inflight_prefills.pop(request, None)
                if self.overlap:
                    request.in_flight += 1
            else:
                self.inflight_prefills[request] = None
            step.work[at] = (request, count, sampled)
            if count == 1 and sampled and not request.prefilling:
                step.decode_batch += 1
                step.sum_context += end
                step.max_context = max(step.max_context, end)
            else:
                step.prefills.append((request, start, count))
                step.new_tokens += count
                step.cached_tokens += start
                step.pairs2 += count * (2 * start + count + 1)
            request.prefilling = not sampled

    def forwarded(self, step: VllmStep, now: int) -> None:
        """Let the connector's worker report what completed by the end of the step's forward."""
        if not step.forwarded:
            step.forwarded = True
            self.connector.forwarded(step, now)

    def process(self, step: VllmStep, now: int) -> Settled:
        """Process one step's output: withheld releases, then tokens and stops in scheduling order, then transfers."""
        self.processed += 1
        if self._withheld:
            for table in self._withheld.pop(self.processed, ()):
                self.pool.release(table)
        settled = Settled()
        if step.cohort:
            self._settle_tick(step, now, settled)
        else:
            self._settle_work(step.work, now, settled)
        if not self.connector.present:
            return settled
        for request in self.connector.process(step, now):
            if request in self._orphans:
                del self._orphans[request]
                self.pool.release(request.table)
            else:
                request.loaded = True
        return settled

    def _settle_work(self, work: list[tuple[VllmRequest, int, bool]], now: int, settled: Settled) -> None:
        for request, _, sampled in work:
            if sampled and request.phase != ENDED:
                self._receive(request, now, settled)

    def _settle_tick(self, step: VllmStep, now: int, settled: Settled) -> None:
        """Settle a step with members of the cohort: only those that end are looked at, in scheduling order."""
        tokens, ended, one_by_one = self.cohort.settle(step.cohort, self.pool)
        settled.emitted += tokens
        if not ended and not one_by_one:
            self._settle_work(step.work, now, settled)
            return
        ended_now = {id(request): None for request in ended}
        for request in ended:
            request.step = self._cohort_step if request.last_tick > self.cohort.settled else self.processed
        everybody = [(request, 1, True) for request in (*ended, *one_by_one)]
        work = sorted([*everybody, *step.work], key=lambda item: item[0].place) if step.work or len(everybody) > 1 else everybody
        for request, _, sampled in work:
            if id(request) in ended_now:
                settled.finished.append(request)
                self._end(request, self._stops(request), now)
            elif sampled and request.phase != ENDED:
                self._receive(request, now, settled)

    def _receive(self, request: VllmRequest, now: int, settled: Settled) -> None:
        """Give a request its token and see whether it stops (check_stop)."""
        request.output_done += 1
        settled.emitted += 1
        if request.first_token_ps is None:
            request.first_token_ps = now
            settled.first.append(request)
        elif request.readmitted:
            settled.again.append(request)
        request.readmitted = False
        if self.overlap:
            request.in_flight -= 1
        how = self._stops(request)
        if self.overlap and request.phase == RUNNING and self.params.enable_prefix_caching:
            upto = min(request.computed - request.in_flight, request.known) // self.params.block_size
            if upto > request.table.cached:
                self.pool.cache(request.table, request.keys, upto)
        if how:
            settled.finished.append(request)
            self._end(request, how, now)

    def _stops(self, request: VllmRequest) -> str:
        done = request.output_done
        if done >= request.spec.output_tokens < request.limit:
            return "stop"
        return "len" if done >= request.limit or request.known >= self.params.max_model_len else ""
