import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import type { Driver } from '../../../src/worker/drivers/driver.ts'
import type { SandboxSpec } from '../../../src/domain/spec/spec.ts'
import { makeDesiredRun, runVolume } from '../../support/desired-run.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../support/spec.ts'
import { describeConformance } from './conformance.ts'

/** A cluster with a driver over it. */
type Fixture = {
  open(): Promise<Driver>
  /** The names of the Pods of the driver. */
  pods(): Promise<readonly string[]>
  remove(): Promise<void>
}

type KubernetesSubject = {
  readonly name: string
  readonly whyNot: string | null
  readonly make: () => Promise<Fixture>
}

const { resources, runtime } = DEFAULT_SPEC_FOR_TESTS

/** The specification of a sandbox that Pods can be. */
export const POD_SPEC: Partial<SandboxSpec> = {
  image: 'localhost/box:1',
  labels: { 'sandyard.disk': 'run' },
  resources: { ...resources, memory_mib: 64, vcpus: 1 },
  network: { ...DEFAULT_SPEC_FOR_TESTS.network, enabled: true },
}

/**
 * Tests the guarantees of `Driver` on Pods. The same cases run on the fake of the API and on a real cluster, which shows that the fake is
 * right. The fake's sandboxes have no files of their own, so the guarantees about those don't apply.
 */
export function describeKubernetesConformance({ name, whyNot, make }: KubernetesSubject): void {
  let made: Fixture | null = null
  const fixture = (): Fixture => {
    if (made === null) throw new Error('the fixture is not made yet')
    return made
  }
  before(async () => {
    if (whyNot === null) made = await make()
  })
  after(() => made?.remove())

  describeConformance({
    name,
    whyNot,
    open: () => fixture().open(),
    makeRun: (spec, sandbox) => makeDesiredRun({ ...POD_SPEC, ...spec }, sandbox),
    specs: {
      failing: { image: '127.0.0.1:1/none:1' }, // nothing listens there
      slow: { resources: { ...resources, memory_mib: 10_000_000 } }, // no node has so much
      endsWith7: { runtime: { ...runtime, entrypoint: [], cmd: ['sh', '-c', 'sleep 0.1; exit 7'] } },
    },
    run: null,
    async openDefaultVolume({ volumes }) {
      assert.ok(volumes)
      return await volumes.openFiles(runVolume(null))
    },
    leftovers: () => fixture().pods(),
  })
}
