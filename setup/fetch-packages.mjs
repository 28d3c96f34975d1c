// Fetches npm packages that only some tests need, into a folder of their own. They are not in the lock file, because
// npm would then refuse to install the lock file on machines that have no such package.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { npmCommand } from './npm-command.mjs'
import { say, SetUpFailure } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'

/** Fetches packages such as `npm@10` into the `node_modules` of a folder, once. Throws SetUpFailure with the reason. */
export function fetchPackages(folder, packages) {
  const mark = join(folder, `fetched ${packages.join(' ').replaceAll('/', ' ')}`)
  if (existsSync(mark)) return
  withSetUpLock(`${folder}.lock`, () => {
    if (existsSync(mark)) return
    say(`fetching what only tests need: npm install ${packages.join(' ')}`)
    rmSync(folder, { recursive: true, force: true })
    mkdirSync(folder, { recursive: true })
    const npm = npmCommand()
    const install = ['install', `--prefix=${folder}`, '--ignore-scripts', '--no-audit', '--no-fund', ...packages]
    const { status } = spawnSync(process.execPath, [npm.path, ...install], {
      cwd: folder,
      env: { ...process.env, ...npm.env },
      stdio: ['ignore', process.stderr.fd, process.stderr.fd],
    })
    if (status !== 0) throw new SetUpFailure(`${packages.join(' ')} could not be fetched; the output of npm is above`)
    writeFileSync(mark, '')
  })
}
