import { spawnSync } from 'node:child_process'
import { mkdirSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram, isExecutable } from './find-program.mjs'
import { say } from './say.mjs'

/**
 * Returns the path of pgbench. If the machine has none, fetches it into `folder`. Prints the reason and returns
 * undefined when that fails. Debian ships pgbench in the package of the server, whose installation starts a database.
 * Therefore that package is only unpacked. Its dependency libpq5 is installed.
 */
export function ensurePgbench(folder) {
  const found =
    pgbenchBeneath('/usr/lib/postgresql') ??
    pgbenchBeneath(join(folder, 'usr/lib/postgresql')) ??
    findProgram('pgbench')
  if (found !== undefined) return found
  if (process.env.SANDYARD_SETUP === 'skip' || process.getuid?.() !== 0 || findProgram('apt-get') === undefined) {
    say('pgbench is missing and the set-up may not or can not install it, so measurements against it are left out')
    return undefined
  }
  say(
    `fetching pgbench: apt-get install libpq5; apt-get download of the PostgreSQL server's package, unpacked into ${folder}`,
  )
  mkdirSync(folder, { recursive: true })
  const script =
    'apt-get -q update && apt-get -q install -y --no-install-recommends libpq5 && ' +
    "apt-get -q download $(apt-cache depends postgresql | sed -n 's/.*Depends: \\(postgresql-[0-9]*\\)$/\\1/p') && dpkg-deb -x postgresql-*.deb ."
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  const { status, stdout, stderr } = spawnSync('sh', ['-c', script], {
    cwd: folder,
    env,
    encoding: 'utf8',
    timeout: 10 * 60_000,
  })
  if (status !== 0) say(`that failed, so measurements against pgbench are left out:\n${stdout}${stderr}`)
  return pgbenchBeneath(join(folder, 'usr/lib/postgresql'))
}

/** Searches for pgbench in Debian's layout, which has one folder for each version of the server. */
function pgbenchBeneath(folder) {
  try {
    return readdirSync(folder)
      .reverse()
      .map((version) => join(folder, version, 'bin', 'pgbench'))
      .find(isExecutable)
  } catch (error) {
    if (error.code === 'ENOENT') return undefined
    throw error
  }
}
