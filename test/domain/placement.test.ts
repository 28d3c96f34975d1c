import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { asId, type WorkerId } from '../../src/domain/ids.ts'
import { isTorn, place, type PlacementRequest, type PlacementWorker } from '../../src/domain/placement.ts'

const ids = ['w1', 'w2', 'w3'].map((id) => asId<WorkerId>(id))
const abilities = fc.subarray(['a', 'b', 'c'])
const aWorker = (id: WorkerId): fc.Arbitrary<PlacementWorker> =>
  fc.record({
    id: fc.constant(id),
    free_vcpus: fc.integer({ min: -2, max: 8 }),
    free_memory_mib: fc.integer({ min: -100, max: 1_000 }),
    abilities,
    storage: fc.option(fc.record({ is_shared: fc.boolean(), enforces_caps: fc.boolean() })),
  })
const workers = fc.tuple(...ids.map(aWorker)).map((all): readonly PlacementWorker[] => all)
const requests: fc.Arbitrary<readonly PlacementRequest<number>[]> = fc
  .array(
    fc.record({
      vcpus: fc.integer({ min: 1, max: 4 }),
      memory_mib: fc.integer({ min: 16, max: 600 }),
      abilities,
      home_worker_id: fc.option(fc.constantFrom(...ids, asId<WorkerId>('gone'))),
      volumes: fc.option(fc.record({ homes: fc.subarray(ids), needs_shared: fc.boolean(), needs_caps: fc.boolean() })),
    }),
    { maxLength: 20 },
  )
  .map((all) => all.map((request, id) => ({ ...request, id })))

test('a worker never gets more than it has, nothing that it can’t enforce, and nothing that lives elsewhere', () => {
  fc.assert(
    fc.property(requests, workers, (wanted, offers) => {
      const { placed } = place(wanted, offers)
      for (const worker of offers) {
        const given = placed.filter(({ worker_id }) => worker_id === worker.id).flatMap(({ id }) => wanted[id] ?? [])
        if (given.length === 0) continue
        assert.ok(given.reduce((sum, { vcpus }) => sum + vcpus, 0) <= worker.free_vcpus)
        assert.ok(given.reduce((sum, { memory_mib }) => sum + memory_mib, 0) <= worker.free_memory_mib)
        for (const request of given) {
          assert.ok(request.abilities.every((ability) => worker.abilities.includes(ability)))
          assert.ok(request.home_worker_id === null || request.home_worker_id === worker.id)
          assert.ok(!isTorn(request))
          const { volumes } = request
          if (volumes === null) continue
          assert.ok(volumes.homes.every((home) => home === worker.id))
          assert.ok(!volumes.needs_shared || worker.storage?.is_shared === true)
          assert.ok(!volumes.needs_caps || worker.storage?.enforces_caps === true)
        }
      }
    }),
  )
})

test('each request is placed or waits, once, and none waits that still has room at the end', () => {
  fc.assert(
    fc.property(requests, workers, (wanted, offers) => {
      const { placed, waiting } = place(wanted, offers)
      const told = [...placed.map(({ id }) => id), ...waiting].sort((a, b) => a - b)
      assert.deepEqual(told, wanted.map(({ id }) => id)) // prettier-ignore
      const left = offers.map((worker) => {
        const given = placed.filter(({ worker_id }) => worker_id === worker.id).flatMap(({ id }) => wanted[id] ?? [])
        return {
          ...worker,
          free_vcpus: given.reduce((free, { vcpus }) => free - vcpus, worker.free_vcpus),
          free_memory_mib: given.reduce((free, { memory_mib }) => free - memory_mib, worker.free_memory_mib),
        }
      })
      const again = place(wanted.filter(({ id }) => waiting.includes(id)), left) // prettier-ignore
      assert.deepEqual(again.placed, [])
    }),
  )
})

test('of workers with room the fullest is chosen, so that large requests keep finding room', () => {
  const offer = { free_vcpus: 8, abilities: [], storage: null }
  const offers = ids.map((id, index) => ({ ...offer, id, free_memory_mib: [900, 300, 600][index] ?? 0 }))
  const request = { id: 0, vcpus: 1, memory_mib: 256, abilities: [], home_worker_id: null, volumes: null }
  assert.deepEqual(place([request], offers).placed, [{ id: 0, worker_id: 'w2' }])
})
