import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { folderHash } from '../support/folder-hash.ts'
import { parseMountinfo } from '../../src/worker/processes/mountinfo.ts'
import { openAttackedDriver } from '../support/attacked-driver.ts'
import { whyNoOci } from '../support/oci-driver.ts'
import { attack } from '../support/security-attack.ts'

/** A user id of the host that no account and no sandbox has. */
const LOCAL_UID = 54_321

attack(
  "reads a sandbox's files or runs its set-user-id programs",
  { target: 'host', attacker: 'a local account of the host', finding: 6, skip: whyNoOci() },
  async () => {
    await using attacked = await openAttackedDriver()
    const run = await attacked.start()
    const prepare = 'umask 0; echo secret >/secret; cp /bin/sh /suid-shell; chmod 4755 /suid-shell; chmod 777 /'
    assert.equal((await attacked.inside(run, prepare)).code, 0)
    const hash = folderHash(`${attacked.fixture.dir}/state`)
    const points = parseMountinfo(readFileSync('/proc/self/mountinfo', 'utf8'))
      .map(({ point }) => point)
      .filter((point) => point.includes(hash) && point.includes(attacked.fixture.containerIdOf(run.run_id)))
    assert.ok(points.length >= 2, `the mounts of the run: ${points.join(' ')}`)
    const attempts = points.flatMap((point) => [
      `ls '${point}'`,
      `cat '${point}/secret' '${point}/upper/secret'`,
      `'${point}/suid-shell' -c id; '${point}/upper/suid-shell' -c id`,
    ])
    for (const attempt of attempts) {
      const { stdout } = spawnSync('sh', ['-c', attempt], { uid: LOCAL_UID, gid: LOCAL_UID, encoding: 'utf8' })
      assert.equal(stdout, '', `${attempt} showed something`)
    }
    return {
      tries: attempts.length,
      outcome: `nothing was listed, read or run at ${String(points.length)} mount points of the run`,
    }
  },
)
