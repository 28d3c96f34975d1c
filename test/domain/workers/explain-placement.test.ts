import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { asId, type OrgId, type WorkerId } from '../../../src/domain/ids.ts'
import type { PlacementRequest, PlacementWorker } from '../../../src/domain/workers/placement.ts'
import { explainPlacement } from '../../../src/domain/workers/explain-placement.ts'
import { makeCapacityIndex } from '../../../src/domain/workers/capacity-index.ts'

const [here, there] = [asId<WorkerId>('here'), asId<WorkerId>('there')]
const WORKER: PlacementWorker = {
  id: here,
  org_ids: null,
  free_vcpus: 4,
  free_memory_mib: 4_096,
  free_disk_mib: 10_000,
  default_disk_mib: 1_000,
  abilities: ['patches'],
  storage: { is_shared: false, enforces_caps: false },
  images: [],
}
const REQUEST: PlacementRequest = {
  org_id: asId<OrgId>('o1'),
  vcpus: 1,
  memory_mib: 256,
  disk_mib: null,
  abilities: [],
  home_worker_id: null,
  volumes: null,
  image: null,
}

/** The kind and name of each thing that a request misses on these workers. */
function lacks(request: Partial<PlacementRequest>, workers: readonly PlacementWorker[]): readonly string[] {
  return explainPlacement({ ...REQUEST, ...request }, workers).missing.map(({ kind, name }) => `${kind} ${name}`)
}

test('each resource that no worker has enough of is named, with the requested amount and that of the closest worker', () => {
  const workers = [WORKER, { ...WORKER, id: there, free_vcpus: 1, free_memory_mib: 8_192 }]
  const told = explainPlacement({ ...REQUEST, vcpus: 8, memory_mib: 6_000 }, workers)
  assert.deepEqual(told.largest_free, { vcpus: 4, memory_mib: 4_096, disk_mib: 10_000 })
  assert.deepEqual(
    told.missing.map(({ name, requested, largest_free }) => [name, requested, largest_free]),
    [
      ['vcpus', 8, 4],
      ['memory_mib', 6_000, 4_096],
    ],
  )
})

test('abilities that no worker has are named, and free capacity counts only workers that could run the sandbox', () => {
  const workers = [WORKER, { ...WORKER, id: there, free_vcpus: 0, abilities: ['patches', 'secrets'] }]
  assert.deepEqual(lacks({ abilities: ['metrics'] }, workers), ['ability metrics'])
  assert.deepEqual(lacks({ abilities: ['secrets'] }, workers), ['resource vcpus'])
  assert.deepEqual(lacks({ home_worker_id: asId<WorkerId>('away') }, workers), ['disk disk'])
  assert.deepEqual(lacks({ home_worker_id: there }, workers), ['resource vcpus'])
  const volumes = { homes: [asId<WorkerId>('away')], needs_shared: false, needs_caps: false }
  assert.deepEqual(lacks({ volumes }, workers), ['volume volumes'])
  assert.deepEqual(lacks({ volumes: { homes: [], needs_shared: false, needs_caps: true } }, workers), [
    'volume volumes',
  ])
})

test('a disk that no worker has capacity for is named by its size, unless it is there already', () => {
  const workers = [{ ...WORKER, free_disk_mib: 700 }]
  const told = explainPlacement({ ...REQUEST, disk_mib: 800 }, workers)
  assert.deepEqual(told.missing, [
    {
      kind: 'resource',
      name: 'disk_mib',
      requested: 800,
      largest_free: 700,
      accepted:
        'a smaller resources.disk_size_mib, fewer sandboxes (stopped ones count too), or a higher SANDYARD_DISK_OVERCOMMIT',
    },
  ])
  const short = explainPlacement({ ...REQUEST, disk_mib: 800 }, [{ ...WORKER, free_disk_mib: 0, is_disk_short: true }])
  assert.match(short.missing[0]?.accepted ?? '', /its disk is full up to SANDYARD_DISK_RESERVE_MIB; delete sandboxes/)
  assert.equal(told.largest_free.disk_mib, 700)
  const [byDefault] = explainPlacement(REQUEST, workers).missing
  assert.deepEqual([byDefault?.name, byDefault?.requested], ['disk_mib', 1_000])
  assert.deepEqual(lacks({ disk_mib: 700 }, workers), [])
  assert.deepEqual(lacks({ disk_mib: 800, home_worker_id: here }, [{ ...WORKER, free_disk_mib: -5 }]), [])
  assert.equal(explainPlacement({ ...REQUEST, disk_mib: 9_999_999 }, [{ ...WORKER, free_disk_mib: null }]).largest_free.disk_mib, null) // prettier-ignore
})

test('if no worker accepts runs, a worker is missing and there is no free capacity', () => {
  const told = explainPlacement({ ...REQUEST, abilities: ['patches'] }, [])
  assert.deepEqual(told.largest_free, { vcpus: 0, memory_mib: 0, disk_mib: 0 })
  assert.deepEqual(told.missing.map(({ kind }) => kind), ['worker']) // prettier-ignore
})

test('something is missing exactly when the request can’t be placed', () => {
  const abilities = fc.subarray(['a', 'b'])
  const workers = fc.array(
    fc.record({
      id: fc.constantFrom(here, there),
      org_ids: fc.constant(null),
      free_vcpus: fc.integer({ min: -1, max: 3 }),
      free_memory_mib: fc.integer({ min: -10, max: 600 }),
      free_disk_mib: fc.option(fc.integer({ min: -10, max: 90 })),
      default_disk_mib: fc.constantFrom(10, 40, null),
      abilities,
      storage: fc.option(fc.record({ is_shared: fc.boolean(), enforces_caps: fc.boolean() })),
      images: fc.constant([]),
    }),
    { maxLength: 2 },
  )
  const request = fc.record({
    org_id: fc.constant(asId<OrgId>('o1')),
    vcpus: fc.integer({ min: 1, max: 3 }),
    memory_mib: fc.integer({ min: 16, max: 600 }),
    disk_mib: fc.option(fc.integer({ min: 5, max: 60 })),
    abilities,
    home_worker_id: fc.option(fc.constantFrom(here, there)),
    volumes: fc.option(
      fc.record({ homes: fc.subarray([here, there]), needs_shared: fc.boolean(), needs_caps: fc.boolean() }),
    ),
    image: fc.constant(null),
  })
  const isDistinct = (all: readonly PlacementWorker[]): boolean => new Set(all.map(({ id }) => id)).size === all.length
  fc.assert(
    fc.property(request, workers.filter(isDistinct), (wanted, offers) => {
      const isPlaced = makeCapacityIndex(offers, 'pack').allocate(wanted) !== null
      assert.equal(explainPlacement(wanted, offers).missing.length === 0, isPlaced)
    }),
  )
})
