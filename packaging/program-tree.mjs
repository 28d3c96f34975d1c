// Makes the files of the program as the Debian package and the container image install them: the npm package with its
// dependencies in `usr/lib/sandyard`, Node among them, and `usr/bin/sandyard`. The target machine needs no npm.
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { npmCommand } from '../setup/npm-command.mjs'

/** The project's folder. */
export const root = fileURLToPath(new URL('..', import.meta.url))

/** Packs the npm package, or takes the given tarball, and installs it into `to`. */
export function makeProgramTree(to, { tarball, workFolder }) {
  const packed = tarball ?? packProject(workFolder)
  const prefix = join(workFolder, 'prefix')
  npm(['install', '--global', `--prefix=${prefix}`, '--ignore-scripts', '--no-audit', '--no-fund', packed])
  run(join(prefix, 'bin', 'sandyard'), ['worker', '--help']) // fetches what npm left out, as a first start does
  mkdirSync(join(to, 'usr', 'bin'), { recursive: true })
  mkdirSync(join(to, 'usr', 'lib'), { recursive: true })
  const program = join(to, 'usr', 'lib', 'sandyard')
  renameSync(join(prefix, 'lib', 'node_modules', 'sandyard'), program)
  for (const name of ['compile-cache', 'lock']) rmSync(join(program, '.setup', name), { recursive: true, force: true })
  const launcher = join(to, 'usr', 'bin', 'sandyard')
  writeFileSync(launcher, '#!/bin/sh\nexec /usr/lib/sandyard/.setup/node /usr/lib/sandyard/dist/cli.js "$@"\n')
  chmodSync(launcher, 0o755)
}

/** The version of package.json. */
export const version = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).version

/** Runs a program to its end, with its output on standard error. Throws unless it succeeds. */
export function run(program, args, options = {}) {
  execFileSync(program, args, { stdio: ['ignore', 2, 2], ...options })
}

function packProject(folder) {
  npm(['pack', `--pack-destination=${folder}`], { cwd: root })
  return join(folder, `sandyard-${version}.tgz`)
}

function npm(args, options) {
  const { path, env } = npmCommand()
  run(process.execPath, [path, ...args], { ...options, env: { ...process.env, ...env } })
}
