import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { ABILITIES } from '../../../../src/domain/abilities.ts'
import type { NetworkSpec, Resources, RuntimeOptions, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import {
  FOLDER, LIFECYCLE, NAMED, NETWORK, OPTIONS, PATCHES, RESOURCES, RUNTIME, SPEC, TMPFS,
  type Folder, type InMemory, type NamedFolder, type TableOf,
} from './spec-fields.ts' // prettier-ignore
import { findInstallation, vmPaths } from '../../../../src/worker/drivers/microsandbox/installation.ts'
import {
  makeVmConfig,
  MICROSANDBOX_ABILITIES,
  type VmConfigInput,
} from '../../../../src/worker/drivers/microsandbox/make-vm-config.ts'
import { applyVmConfig } from '../../../../src/worker/drivers/microsandbox/apply-vm-config.ts'
import { callSdk, type SdkRequest } from '../../../../src/worker/drivers/microsandbox/sdk-client.ts'
import type { VmConfig } from '../../../../src/worker/drivers/microsandbox/vm-config.ts'
import { bind, named, tmpfs } from '../../../support/mounts.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'

const CONFIG_INPUT: VmConfigInput = {
  name: 'sy-test',
  image: 'localhost/sandyard:x',
  diskSizeMib: 600,
  sources: new Map([[0, '/pins/0']]),
  copies: new Map([[0, '/copies/0']]),
  caBundle: '/etc/ssl/certs/ca-certificates.crt',
  makesWorkdir: false,
}

describe(
  'the configuration of a microVM',
  { skip: findInstallation() === null ? 'the optional npm package microsandbox is not installed' : false },
  () => {
    let home: string
    before(() => {
      home = mkdtempSync(join(tmpdir(), 'sandyard-vm-config-'))
      process.env['MSB_HOME'] = home
    })
    after(() => {
      rmSync(home, { recursive: true, force: true })
    })

    const ask = async (request: SdkRequest): Promise<unknown> => {
      const answer = await callSdk({
        home,
        request,
        label: 'test',
        surroundings: null,
        signal: AbortSignal.timeout(60_000),
      })
      if (answer.kind === 'failed') throw new Error(`${answer.code}: ${answer.message}`)
      return answer.value
    }
    // Calls the SDK in this process, because loading the SDK takes longer than all the tests. One test below calls it as the
    // driver does.
    const build = async (spec: Partial<SandboxSpec>, input: Partial<VmConfigInput> = {}): Promise<unknown> => {
      const { Sandbox } = await import('microsandbox')
      return await applyVmConfig(Sandbox.builder('sy-test'), configOf(spec, input)).build()
    }
    const configOf = (spec: Partial<SandboxSpec>, input: Partial<VmConfigInput>): VmConfig =>
      makeVmConfig(makeDesiredRun(spec), { ...CONFIG_INPUT, ...input })

    const testEachField = <T>(
      what: string,
      table: TableOf<T>,
      specOf: (part: Partial<T>) => Partial<SandboxSpec>,
    ): void => {
      for (const name of Object.keys(table) as (keyof T & string)[]) {
        // the keys of the table are the names of the fields
        const fieldCase = table[name]
        if (!('at' in fieldCase)) continue
        test(`has ${what}${name} as the spec has it`, async () => {
          const before = await build(specOf({}))
          const config = await build(specOf({ [name]: fieldCase.value } as Partial<T>)) // one field with its own value
          assert.deepEqual(at(config, fieldCase.at), fieldCase.is)
          assert.notDeepEqual(
            at(before, fieldCase.at),
            fieldCase.is,
            'the test proves nothing, because the default gives the same value',
          )
        })
      }
    }
    const { runtime, resources, network } = DEFAULT_SPEC_FOR_TESTS
    testEachField<SandboxSpec>('', SPEC, (part) => part)
    testEachField<RuntimeOptions>('runtime.', RUNTIME, (part) => ({ runtime: { ...runtime, ...part } }))
    testEachField<Resources>('resources.', RESOURCES, (part) => ({ resources: { ...resources, ...part } }))
    testEachField<NetworkSpec>('network.', NETWORK, (part) => ({ network: { ...network, enabled: true, ...part } }))
    testEachField<Folder>('mounts[].', FOLDER, (part) => ({ mounts: [{ ...bind('/f', '/data'), ...part }] }))
    testEachField<NamedFolder>('mounts[] of a volume: ', NAMED, (part) => ({
      mounts: [{ ...named('v', '/d'), ...part }],
    }))
    testEachField<InMemory>('mounts[] in memory: ', TMPFS, (part) => ({ mounts: [{ ...tmpfs('/m'), ...part }] }))

    for (const [name, { patch, is }] of Object.entries(PATCHES)) {
      test(`has a patch of type ${name} completely`, async () => {
        assert.deepEqual(at(await build({ patches: [patch] }), 'patches'), [is])
      })
    }

    test('has every option of a mount, and allows no device files in a volume', async () => {
      for (const [option, word] of Object.entries(OPTIONS)) {
        const options = at(await build({ mounts: [{ ...tmpfs('/m', { [option]: true }) }] }), 'mounts.0.options')
        const set = Object.entries(options ?? {}).filter(([, value]) => value === true)
        assert.deepEqual(set, [[word, true]])
      }
      assert.equal(at(await build({ mounts: [named('v', '/d')] }), 'mounts.0.options.nodev'), true)
    })

    test('mounts a volume from its pin, without the limit that the runtime would set by itself', async () => {
      const mount = at(await build({ mounts: [named('v', '/d')] }), 'mounts.0')
      assert.equal(at(mount, 'host'), '/pins/0')
      assert.equal(at(mount, 'quotaMib'), 0xffff_ffff)
      assert.deepEqual([at(mount, 'options.overrideUid'), at(mount, 'options.overrideGid')], [0, 0])
    })

    test('makes the disk as large as the spec asks, never pulls, and enforces no time limit of its own', async () => {
      const config = await build({ lifecycle: { ephemeral: true, idle_timeout_secs: 5, max_duration_secs: 6 } })
      const rootDisk = { kind: 'managed', sizeMib: 600 }
      assert.deepEqual(at(config, 'image.Oci'), { reference: 'localhost/sandyard:x', rootDisk })
      assert.equal(at(config, 'pullPolicy'), 'Never')
      assert.deepEqual(at(config, 'lifecycle'), { ephemeral: false, maxDurationSecs: null, idleTimeoutSecs: null })
      assert.equal(at(config, 'runtime.hostname'), 'brave-otter')
    })

    test('has no network when the spec has none', async () => {
      assert.equal(at(await build({ network: { ...network, enabled: true } }), 'network.enabled'), true)
      assert.equal(at(await build({}), 'network.enabled'), false)
    })

    test('creates the working folder that the image lacks', async () => {
      const config = await build({ runtime: { ...runtime, workdir: '/srv' } }, { makesWorkdir: true })
      assert.deepEqual(at(config, 'patches'), [{ Mkdir: { path: '/srv', mode: null } }])
    })

    test('is the same in the SDK’s process as in any other', async () => {
      assert.deepEqual(await ask({ kind: 'build', config: configOf({}, {}) }), await build({}))
    })

    test('is made for this machine, whatever cloud the worker’s environment names', async () => {
      const cloudEnv = {
        MSB_BACKEND: 'cloud',
        MSB_API_URL: 'http://127.0.0.1:1',
        MSB_API_KEY: 'key',
        MSB_PROFILE: 'other',
      }
      Object.assign(process.env, cloudEnv)
      try {
        await assert.rejects(ask({ kind: 'start', name: 'none', env: null }), /sandboxNotFound/)
      } finally {
        for (const name of Object.keys(cloudEnv)) Reflect.deleteProperty(process.env, name)
      }
    })

    test('has the agent socket where the SDK itself looks for it', async () => {
      const { name, agentSocket } = vmPaths(home, makeDesiredRun().sandbox_id)
      assert.equal(await ask({ kind: 'socket', name }), agentSocket)
    })
  },
)

test('every field that the runtime does not get is handled by another part of the code', () => {
  const tables: readonly object[] = [SPEC, RUNTIME, RESOURCES, NETWORK, LIFECYCLE, FOLDER, NAMED, TMPFS]
  const all = tables.flatMap((table) => Object.entries(table))
  assert.deepEqual(
    all.filter(([, fieldCase]) => !('at' in fieldCase) && fieldCase.by === ''),
    [],
  )
})

test('microVMs have all abilities but snapshots', () => {
  const missing = ABILITIES.filter((ability) => !MICROSANDBOX_ABILITIES.includes(ability))
  assert.deepEqual(missing, ['snapshots'])
})

test('a disk image is a raw disk of the guest, whatever its format', () => {
  const options = { readonly: true, noexec: false, nosuid: true, nodev: false }
  const disk = { type: 'disk_image', host: '/d', guest: '/d', format: 'qcow2', fstype: 'ext4', options } as const
  assert.deepEqual(makeVmConfig(makeDesiredRun({ mounts: [disk] }), CONFIG_INPUT).mounts, [
    { type: 'disk', guest: '/d', ...options, nodev: true, source: '/pins/0', fstype: 'ext4' },
  ])
})

/** The value at a path such as `a.0.b`. In a list, `-1` is the last element. */
function at(value: unknown, path: string): unknown {
  return path.split('.').reduce<unknown>((from, part) => {
    if (Array.isArray(from)) return from.at(Number(part))
    return typeof from === 'object' && from !== null
      ? Object.entries(from).find(([key]) => key === part)?.[1]
      : undefined
  }, value)
}
