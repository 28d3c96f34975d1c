import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { asId, type OrgId, type WorkerId } from '../../../src/domain/ids.ts'
import {
  canReachVolumes,
  diskTakenOn,
  hasConflictingHomes,
  PLACEMENT_POLICIES,
  type PlacementPolicy,
  type PlacementRequest,
  type PlacementWorker,
} from '../../../src/domain/workers/placement.ts'
import { mayServeOrg } from '../../../src/domain/workers/worker-bounds.ts'
import { makeCapacityIndex } from '../../../src/domain/workers/capacity-index.ts'
import { bucketOf, makeCapacityBuckets, memoryLevel } from '../../../src/domain/workers/capacity-buckets.ts'

type Request = PlacementRequest & { readonly id: number }

/** Places requests on these workers in order. */
function place(requests: readonly Request[], workers: readonly PlacementWorker[], how: PlacementPolicy) {
  const pool = makeCapacityIndex(workers, how)
  const all = requests.map((request) => ({ id: request.id, worker_id: pool.allocate(request) }))
  return {
    placed: all.flatMap(({ id, worker_id }) => (worker_id === null ? [] : [{ id, worker_id }])),
    waiting: all.filter(({ worker_id }) => worker_id === null).map(({ id }) => id),
  }
}

const ids = ['w1', 'w2', 'w3'].map((id) => asId<WorkerId>(id))
const orgs = ['o1', 'o2'].map((id) => asId<OrgId>(id))
const abilities = fc.subarray(['a', 'b', 'c'])
const policy = fc.constantFrom(...PLACEMENT_POLICIES)
const aWorker = (id: WorkerId): fc.Arbitrary<PlacementWorker> =>
  fc.record({
    id: fc.constant(id),
    org_ids: fc.option(fc.subarray(orgs)),
    free_vcpus: fc.integer({ min: -2, max: 8 }),
    free_memory_mib: fc.integer({ min: -100, max: 1_000 }),
    free_disk_mib: fc.option(fc.integer({ min: -50, max: 500 })),
    default_disk_mib: fc.constantFrom(60, 120, null),
    abilities,
    storage: fc.option(fc.record({ is_shared: fc.boolean(), enforces_caps: fc.boolean() })),
    images: fc.subarray(['red', 'blue']),
  })
const workers = fc.tuple(...ids.map(aWorker)).map((all): readonly PlacementWorker[] => all)
const requests: fc.Arbitrary<readonly Request[]> = fc
  .array(
    fc.record({
      org_id: fc.constantFrom(...orgs, asId<OrgId>('o3')),
      vcpus: fc.integer({ min: 1, max: 4 }),
      memory_mib: fc.integer({ min: 16, max: 600 }),
      disk_mib: fc.option(fc.integer({ min: 10, max: 300 })),
      abilities,
      home_worker_id: fc.option(fc.constantFrom(...ids, asId<WorkerId>('gone'))),
      volumes: fc.option(fc.record({ homes: fc.subarray(ids), needs_shared: fc.boolean(), needs_caps: fc.boolean() })),
      image: fc.option(fc.constantFrom('red', 'blue', 'gone')),
    }),
    { maxLength: 20 },
  )
  .map((all) => all.map((request, id) => ({ ...request, id })))

test('a worker never gets requests beyond its capacity, with abilities that it lacks, with another home, or of an organization that it may not serve', () => {
  fc.assert(
    fc.property(requests, workers, policy, (wanted, offers, how) => {
      const { placed } = place(wanted, offers, how)
      for (const worker of offers) {
        const given = placed.filter(({ worker_id }) => worker_id === worker.id).flatMap(({ id }) => wanted[id] ?? [])
        if (given.length === 0) continue
        assert.ok(given.reduce((sum, { vcpus }) => sum + vcpus, 0) <= worker.free_vcpus)
        assert.ok(given.reduce((sum, { memory_mib }) => sum + memory_mib, 0) <= worker.free_memory_mib)
        const diskMib = given.reduce((sum, one) => sum + diskTakenOn(worker, one), 0)
        assert.ok(diskMib === 0 || diskMib <= (worker.free_disk_mib ?? Infinity))
        for (const request of given) {
          assert.ok(mayServeOrg(worker, request.org_id))
          assert.ok(request.abilities.every((ability) => worker.abilities.includes(ability)))
          assert.ok(request.home_worker_id === null || request.home_worker_id === worker.id)
          assert.ok(!hasConflictingHomes(request))
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

test('each request is either placed or waits, and none waits that would still fit at the end', () => {
  fc.assert(
    fc.property(requests, workers, policy, (wanted, offers, how) => {
      const { placed, waiting } = place(wanted, offers, how)
      const told = [...placed.map(({ id }) => id), ...waiting].sort((a, b) => a - b)
      assert.deepEqual(told, wanted.map(({ id }) => id)) // prettier-ignore
      const left = offers.map((worker) => {
        const given = placed.filter(({ worker_id }) => worker_id === worker.id).flatMap(({ id }) => wanted[id] ?? [])
        return {
          ...worker,
          free_vcpus: given.reduce((free, { vcpus }) => free - vcpus, worker.free_vcpus),
          free_memory_mib: given.reduce((free, { memory_mib }) => free - memory_mib, worker.free_memory_mib),
          free_disk_mib: given.reduce(
            (free, one) => diskLeft({ ...worker, free_disk_mib: free }, one),
            worker.free_disk_mib,
          ),
        }
      })
      const again = place(wanted.filter(({ id }) => waiting.includes(id)), left, how) // prettier-ignore
      assert.deepEqual(again.placed, [])
    }),
  )
})

/** How much disk capacity is left on a worker after a request. Null: not limited. */
function diskLeft(worker: PlacementWorker, request: PlacementRequest): number | null {
  return worker.free_disk_mib === null ? null : worker.free_disk_mib - diskTakenOn(worker, request)
}

/**
 * The workers on which a naive implementation would place a request: of all that can run it, those that hold its image,
 * if any.
 */
function candidates(request: Request, left: readonly PlacementWorker[]): readonly PlacementWorker[] {
  const able = left.filter(
    (worker) =>
      mayServeOrg(worker, request.org_id) &&
      !hasConflictingHomes(request) &&
      (request.home_worker_id ?? worker.id) === worker.id &&
      worker.free_vcpus >= request.vcpus &&
      worker.free_memory_mib >= request.memory_mib &&
      (diskTakenOn(worker, request) === 0 || (diskLeft(worker, request) ?? 0) >= 0) &&
      request.abilities.every((ability) => worker.abilities.includes(ability)) &&
      (request.volumes === null || canReachVolumes(worker, request.volumes)),
  )
  const holders = able.filter(({ images }) => request.image !== null && images.includes(request.image))
  return holders.length > 0 ? holders : able
}

function preferred(able: readonly PlacementWorker[], how: PlacementPolicy): readonly PlacementWorker[] {
  const levels = able.map(({ free_memory_mib }) => memoryLevel(free_memory_mib))
  const wanted = how === 'pack' ? Math.min(...levels) : Math.max(...levels)
  return able.filter((_, index) => levels[index] === wanted)
}

/** Places requests, and asserts that each placement is one that the naive implementation could have chosen. */
function check(wanted: readonly Request[], offers: readonly PlacementWorker[], how: PlacementPolicy): void {
  const { placed } = place(wanted, offers, how)
  const workerOf = new Map(placed.map(({ id, worker_id }) => [id, worker_id]))
  let left = offers
  for (const request of wanted) {
    const worker_id = workerOf.get(request.id)
    const able = candidates(request, left)
    if (worker_id === undefined) assert.deepEqual(able, [], `request ${String(request.id)} waits although it fits`)
    else
      assert.ok(
        preferred(able, how).some(({ id }) => id === worker_id),
        `request ${String(request.id)} is on a worker that the naive rule does not choose`,
      )
    left = left.map((worker) =>
      worker.id === worker_id
        ? {
            ...worker,
            free_vcpus: worker.free_vcpus - request.vcpus,
            free_memory_mib: worker.free_memory_mib - request.memory_mib,
            free_disk_mib: diskLeft(worker, request),
          }
        : worker,
    )
  }
}

test('each request goes where the naive rule sends it: to a holder of its image, then by the policy', () => {
  fc.assert(fc.property(requests, workers, policy, check))
})

test('a large fleet, with images that many and few workers hold, is placed by the same rule as a small one', () => {
  const many = Array.from({ length: 80 }, (_, index) => asId<WorkerId>(`n${String(index)}`))
  const fleet = fc.tuple(...many.map(aWorker)).map((all): readonly PlacementWorker[] => all)
  fc.assert(fc.property(requests, fleet, policy, check), { numRuns: 50 })
})

const offer = {
  org_ids: null,
  free_vcpus: 8,
  free_disk_mib: 1_000,
  default_disk_mib: 100,
  abilities: [],
  storage: null,
  images: [],
}
const request = {
  org_id: asId<OrgId>('o1'),
  vcpus: 1,
  memory_mib: 256,
  disk_mib: null,
  abilities: [],
  home_worker_id: null,
  volumes: null,
  image: null,
}
const roomsOf = (memory: readonly number[]): readonly PlacementWorker[] =>
  ids.map((id, index) => ({ ...offer, id, free_memory_mib: memory[index] ?? 0 }))

test('`pack` chooses the fullest worker that fits, and `spread` the emptiest', () => {
  const offers = roomsOf([900, 300, 600])
  assert.deepEqual(place([{ ...request, id: 0 }], offers, 'pack').placed, [{ id: 0, worker_id: 'w2' }])
  assert.deepEqual(place([{ ...request, id: 0 }], offers, 'spread').placed, [{ id: 0, worker_id: 'w1' }])
})

test('equal workers are chosen in turn by `spread`, and are filled one after the other by `pack`', () => {
  const three = [0, 1, 2].map((id) => ({ ...request, memory_mib: 1, id }))
  const chosen = (how: PlacementPolicy) =>
    place(three, roomsOf([1000, 1000, 1000]), how).placed.map((one) => one.worker_id)
  assert.deepEqual(chosen('spread'), ['w1', 'w2', 'w3'])
  assert.deepEqual(chosen('pack'), ['w1', 'w1', 'w1'])
})

test('more free memory never has a lower level', () => {
  fc.assert(
    fc.property(fc.integer({ min: -10, max: 2 ** 31 - 1 }), fc.nat(2 ** 31 - 1), (mib, more) => {
      assert.ok(memoryLevel(mib + more) >= memoryLevel(mib))
    }),
  )
})

test('a disk counts with its size or with the default of the worker, and takes nothing where it is already', () => {
  const offers = ids.map((id, index) => ({
    ...offer,
    id,
    free_memory_mib: 1_000,
    free_disk_mib: [90, 250, null][index] ?? null,
  }))
  const sized = (disk_mib: number | null, id: number) => ({ ...request, memory_mib: 1, disk_mib, id })
  const many = [sized(90, 0), sized(null, 1), sized(null, 2), sized(60, 3), sized(300, 4), sized(null, 5)]
  const chosen = (how: PlacementPolicy) => place(many, offers.slice(0, 2), how)
  assert.deepEqual(chosen('pack').placed.map(({ worker_id }) => worker_id), ['w1', 'w2', 'w2']) // prettier-ignore
  assert.deepEqual(chosen('pack').waiting, [3, 4, 5])
  assert.deepEqual(place(many.slice(4), offers, 'pack').waiting, [], 'a worker without a limit takes every disk')
  const full = offers.map((worker) => ({ ...worker, free_disk_mib: -100 }))
  const home_worker_id = asId<WorkerId>('w2')
  const again = { ...request, disk_mib: 5_000, home_worker_id, id: 0 }
  assert.deepEqual(place([again], full, 'pack').placed, [{ id: 0, worker_id: 'w2' }])
  const volumes = { homes: [home_worker_id], needs_shared: false, needs_caps: false }
  const withVolume = { ...request, volumes, id: 0 }
  const reaching = full.map((worker) => ({ ...worker, storage: { is_shared: false, enforces_caps: false } }))
  assert.deepEqual(place([withVolume], reaching, 'pack').waiting, [0], 'a volume at home is no disk at home')
})

test('workers with vCPUs and memory but no disk are not looked at in each search', () => {
  let looks = 0
  const buckets = makeCapacityBuckets()
  for (let index = 0; index < 5_000; index++) {
    const free_disk_mib = index < 4_900 ? 99 : 100
    const worker = {
      free_vcpus: 40,
      free_memory_mib: 100_000,
      get free_disk_mib() {
        looks += 1
        return free_disk_mib
      },
    }
    buckets.add(worker, bucketOf(worker))
  }
  looks = 0
  for (let index = 0; index < 100; index++)
    assert.equal(buckets.find({ vcpus: 1, memory_mib: 1, disk_mib: 100 }, 'least')?.free_disk_mib, 100)
  assert.ok(looks < 20_000, `${String(looks)} looks`)
  assert.equal(buckets.find({ vcpus: 1, memory_mib: 1, disk_mib: 101 }, 'least'), null)
  looks = 0
  assert.equal(buckets.find({ vcpus: 1, memory_mib: 1, disk_mib: 101 }, 'least'), null)
  assert.equal(looks, 0, 'once searched in vain, a bucket is skipped')
})
