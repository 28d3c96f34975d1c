import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { chmodSync, chownSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { reclaimHostDevices } from '../../src/worker/drivers/oci/run/host-devices.ts'
import { openAttackedDriver } from '../support/attacked-driver.ts'
import { whyNoOci } from '../support/oci-driver.ts'
import { attack } from '../support/security-attack.ts'

const NODES = ['null', 'zero', 'full', 'random', 'urandom', 'tty'] as const
const skip = whyNoOci()

attack(
  'takes the device nodes of the host, or makes them unusable',
  { target: 'host', attacker: 'root in a sandbox', finding: 1, skip },
  async (t) => {
    t.after(() => {
      // A sandbox that succeeded must not break the machine on which this test runs.
      for (const name of NODES) chownSync(`/dev/${name}`, 0, 0)
      for (const name of NODES) chmodSync(`/dev/${name}`, 0o666)
    })
    await using attacked = await openAttackedDriver()
    const before = NODES.map(stateOf)
    const attacker = await attacked.start()
    const victim = await attacked.start()
    const attempts = [
      ...NODES.flatMap((name) => [`chmod 600 /dev/${name}`, `chown 1000 /dev/${name}`, `rm -f /dev/${name}`]),
      ...[0, 1, 2].flatMap((fd) => [`chmod 600 /proc/1/fd/${String(fd)}`, `chown 1000 /proc/1/fd/${String(fd)}`]),
      'mknod /dev/own c 1 3',
      'umount /dev',
    ]
    for (const command of attempts) await attacked.inside(attacker, command)
    assert.deepEqual(NODES.map(stateOf), before, 'a device node of the host changed')
    const works = 'echo x >/dev/null && head -c 4 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c'
    assert.equal((await attacked.inside(victim, works)).stdout.replaceAll(/\s+/g, ' '), '4 4 ')
    return {
      tries: attempts.length,
      outcome: `owner, mode and inode of ${String(NODES.length)} nodes of the host stayed the same; a neighbour's nodes work`,
    }
  },
)

test('a workload without input reads an empty standard input', { skip: skip ?? false }, async () => {
  await using attacked = await openAttackedDriver()
  const run = await attacked.start()
  const { stdout } = await attacked.inside(run, 'timeout 5 cat </proc/1/fd/0; echo $?')
  assert.equal(stdout, '0\n')
})

test('a worker gives a device node back to root if a sandbox owns it', { skip: skip ?? false }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-nodes-'))
  t.after(() => {
    rmSync(folder, { recursive: true })
  })
  const node = join(folder, 'null')
  assert.equal(spawnSync('mknod', ['-m', '600', node, 'c', '1', '3']).status, 0)
  chownSync(node, 100_000, 100_000)
  const ignore = (): void => undefined
  const log = { debug: ignore, info: ignore, warn: ignore, error: ignore, child: () => log }
  await reclaimHostDevices(log, [node])
  const { uid, gid, mode } = statSync(node)
  assert.deepEqual([uid, gid, mode & 0o777], [0, 0, 0o666])
})

function stateOf(name: string): string {
  const { uid, gid, mode, ino, rdev } = statSync(`/dev/${name}`)
  return `${name}: ${String(uid)}:${String(gid)} ${mode.toString(8)} inode ${String(ino)} device ${String(rdev)}`
}
