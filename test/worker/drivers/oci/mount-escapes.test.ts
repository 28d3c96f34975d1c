import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, afterEach, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { Mount, Patch } from '../../../../src/domain/spec/spec.ts'
import type { CommandResult } from '../../../../src/lib/run-command.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { assertMountRefused, bind, named, desiredRunWithMounts } from '../../../support/mounts.ts'
import { attack } from '../../../support/security-attack.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'

const NEVER = new AbortController().signal
/** Each round starts a sandbox while another one swaps the sources of its mounts, about ten thousand times a second. */
const ROUNDS = 12
/** Swapping two names atomically needs renameat2, which the tests call by its x64 number, and which gVisor lacks. */
const skip = process.arch !== 'x64' || testRuntime() === 'runsc' ? 'needs renameat2 of x64' : null
const FACTS = { target: 'volumes', attacker: 'root in a sandbox that writes to the volume', finding: null } as const
let fixture: OciFixture
let driver: Driver
let attacker: DesiredRun

describe('out of a mounted volume', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  before(async () => {
    fixture = await makeOciFixture()
    driver = await fixture.open()
    writeFileSync(join(fixture.dir, 'secret'), 'secret', { mode: 0o644 })
    mkdirSync(join(fixture.dir, 'outside'))
    for (const folder of [fixture.dir, join(fixture.dir, 'outside')]) chmodSync(folder, 0o777)
    attacker = desiredRunWithMounts([bind('/', '/volume'), named('v', '/v')])
    await driver.start(attacker, NEVER)
  })
  afterEach(async () => {
    for (const run of await driver.list()) if (run.run_id !== attacker.run_id) await driver.remove(run.run_id)
    assert.deepEqual(readdirSync(join(fixture.dir, 'outside')), [])
  })
  after(async () => {
    await driver.remove(attacker.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  attack("redirects another sandbox's bind mount by symlinks in a shared volume", FACTS, async () => {
    await inside(
      attacker,
      `cd /volume; mkdir in; ln -s / x; ln -s ../../.. y; ln -s ${fixture.dir} z; ln -s y/.. w; ln -s in/../in ok`,
    )
    const sources = ['x', 'x/etc', 'y', 'y/etc', 'z', 'z/secret', 'w', 'w/new', './x', '/x/']
    for (const host of sources)
      await refused([bind(host, '/data')], /^the mount on '\/data' could not be made: '.*out of the volume$/)
    const box = await start([bind('ok', '/data')])
    await inside(box, 'echo x >/data/file')
    assert.equal((await inside(attacker, 'cat /volume/in/file')).stdout, 'x\n')
    return {
      tries: sources.length,
      outcome: `each of ${String(sources.length)} mounts was refused; one within the volume works`,
    }
  })

  test('no path of a bind mount leads above the volume', async () => {
    for (const host of ['..', '../secret', '/..', 'a/../../secret', './..', 'a/..'])
      await refused([bind(host, '/data')], /'\.\.'$/)
    assert.ok(!existsSync(join(fixture.volume, 'a')))
  })

  test('only folders and files can be bind mounted', async () => {
    execFileSync('mkfifo', [join(fixture.volume, 'pipe')]) // by the host: gVisor keeps named pipes to itself
    await refused([bind('pipe', '/data')], /'pipe' is neither a folder nor a file$/)
    await refused([bind('pipe/under', '/data')], /'pipe/)
  })

  attack('swaps the source of a bind mount for a symlink during the start', { ...FACTS, skip }, async () => {
    await inside(attacker, 'mkdir -p /volume/swap/sub; echo x >/volume/swap/inside; ln -s .. /volume/link')
    await exchangeForEver('/volume/swap', '/volume/link')
    const seen = { started: 0, refused: 0 }
    for (let round = 0; round < ROUNDS || (Math.min(seen.started, seen.refused) === 0 && round < ROUNDS * 8); round++) {
      const box = await startOrRefused([bind('swap', '/data'), bind('swap/sub', '/sub')])
      seen[box === null ? 'refused' : 'started'] += 1
      if (box === null) continue
      assert.deepEqual(lines(await inside(box, 'ls /data; ls /sub')), ['inside', 'sub'])
      await driver.remove(box.run_id)
    }
    assert.ok(seen.started > 0 && seen.refused > 0, JSON.stringify(seen))
    const { started, refused: stopped } = seen
    return {
      tries: started + stopped,
      outcome: `${String(started)} starts saw the volume alone, ${String(stopped)} were refused`,
    }
  })

  attack('leads a mount over a volume out of the sandbox by symlinks', FACTS, async () => {
    await inside(
      attacker,
      `ln -s ${fixture.dir}/outside/a /v/one; ln -s ../../../../../../../../${fixture.dir}/outside/b /v/two`,
    )
    const box = await start([named('v', '/data'), named('w', '/data/one'), named('u', '/data/two/deep')])
    await inside(box, 'echo x >/data/one/file; echo x >/data/two/deep/file')
    assert.ok(
      existsSync(join(fixture.volumeFolder('w'), 'file')) && existsSync(join(fixture.volumeFolder('u'), 'file')),
    )
    await inside(attacker, 'ln -s /proc /v/proc; ln -s /.msb/init /v/init')
    for (const name of ['proc', 'proc/sys', 'init'])
      await refused([named('v', '/data'), named('w', `/data/${name}`)], /reserved for the system/)
    return { tries: 5, outcome: '2 mounts stayed within the sandbox, and 3 over folders of the system were refused' }
  })

  attack('swaps the target of a mount for a symlink during the start', { ...FACTS, skip }, async () => {
    await inside(attacker, `mkdir -p /v/target /v/spare; ln -s ${fixture.dir}/outside /v/leading`)
    await exchangeForEver('/v/target', '/v/leading')
    for (let round = 0; round < ROUNDS; round++) {
      const box = await startOrRefused([named('v', '/data'), named('w', '/data/target/new')])
      if (box === null) continue
      await driver.remove(box.run_id)
    }
    assert.deepEqual(readdirSync(join(fixture.dir, 'outside')), [])
    return { tries: ROUNDS, outcome: 'nothing was made in the folder that the symlink names' }
  })

  attack('swaps the source of a copied patch for a symlink during the copy', { ...FACTS, skip }, async () => {
    await inside(
      attacker,
      'mkdir -p /volume/tree/sub; echo x >/volume/tree/sub/plain; ln -s ../../.. /volume/tree/away',
    )
    await exchangeForEver('/volume/tree/sub', '/volume/tree/away')
    for (let round = 0; round < ROUNDS; round++) {
      const patches: readonly Patch[] = [
        { type: 'copy_dir', src: 'tree', dst: '/copied', replace: false },
        { type: 'copy_dir', src: 'tree/sub', dst: '/again', replace: false },
        { type: 'copy_file', src: 'tree/sub/plain', dst: '/file', mode: null, replace: false },
      ]
      const desired = desiredRunWithMounts([], { patches })
      const isRefused = await driver.start(desired, NEVER).then(
        () => false,
        (error: unknown) => isPatchRefusal(error),
      )
      if (!isRefused)
        assert.doesNotMatch((await inside(desired, 'ls -R /copied /again; cat /file')).stdout, /secret|outside/)
      await driver.remove(desired.run_id)
    }
    return { tries: ROUNDS * 3, outcome: 'each copy was refused or held files of the volume alone' }
  })
})

async function start(mounts: readonly Mount[]): Promise<DesiredRun> {
  const desired = desiredRunWithMounts(mounts)
  await driver.start(desired, NEVER)
  return desired
}

/** Starts a sandbox with these mounts. Resolves with null if the start was refused for an allowed reason. */
async function startOrRefused(mounts: readonly Mount[]): Promise<DesiredRun | null> {
  const desired = desiredRunWithMounts(mounts)
  try {
    await driver.start(desired, NEVER)
    return desired
  } catch (error) {
    // A swap after all checks of the driver makes the OCI runtime fail, which is allowed.
    if (!(error instanceof StartError && error.reason === 'runtime')) assertMountRefused(error, /^the mount on/)
    await driver.remove(desired.run_id)
    return null
  }
}

function isPatchRefusal(error: unknown): true {
  assert.ok(error instanceof StartError && error.reason === 'patch', String(error))
  return true
}

async function refused(mounts: readonly Mount[], message: RegExp): Promise<void> {
  const desired = desiredRunWithMounts(mounts)
  await assert.rejects(driver.start(desired, NEVER), (error) => assertMountRefused(error, message))
}

/** Makes the attacker's sandbox swap two names again and again until the sandbox ends. */
async function exchangeForEver(one: string, other: string): Promise<void> {
  const script = `my ($a, $b) = ("${one}", "${other}"); while (1) { syscall(316, -100, $a, -100, $b, 2); select undef, undef, undef, 0.0001 }`
  await inside(attacker, `perl -e '${script}' >/dev/null 2>&1 </dev/null &`)
}

async function inside(desired: DesiredRun, script: string): Promise<CommandResult> {
  return await fixture.exec(desired.run_id, ['sh', '-c', script])
}

function lines({ stdout }: CommandResult): readonly string[] {
  return stdout.split('\n').filter((line) => line !== '')
}
