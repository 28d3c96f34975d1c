import { spawnSync } from 'node:child_process'
import { mkdirSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram, isExecutable } from './find-program.mjs'
import { say } from './say.mjs'

/**
 * The path of pgbench, fetched into `directoryPath` when this machine has none; undefined, after saying why, when that fails.
 * Debian keeps pgbench in the package of the whole server, which on install starts a database of its own; so the package
 * is only unpacked. It needs libpq5, which the set-up installs with it.
 */
export function ensurePgbench(folder) {
  const found =
    pgbenchBeneath('/usr/lib/postgresql') ??
    pgbenchBeneath(join(folder, 'usr/lib/postgresql')) ??
    findProgram('pgbench')
  if (found !== undefined) return found
  if (process.env.SANDYARD_SETUP === 'skip' || process.getuid?.() !== 0 || findProgram('apt-get') === undefined) {
    say(
      'pgbench is not installed and may not or cannot be installed by the set-up: what is measured against it is left out',
    )
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
  if (status !== 0) say(`that failed, and what is measured against pgbench is left out:\n${stdout}${stderr}`)
  return pgbenchBeneath(join(folder, 'usr/lib/postgresql'))
}

/** Debian's layout: one folder for each version of the server. */
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
