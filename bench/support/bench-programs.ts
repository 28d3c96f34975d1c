import { existsSync } from 'node:fs'
import { delimiter, join } from 'node:path'

/** Programs that the set-up of `npm run bench` found on the machine, or unpacked from Debian's packages. */
export type BenchPrograms = {
  /** The path of a program. Throws if there is none; the set-up has printed the reason. */
  find(name: string): string
  has(name: string): boolean
  /** The variables with which the unpacked programs find their libraries and each other. */
  readonly env: Readonly<Record<string, string>>
  /** The folder of the unpacked packages, which looks like the root of a file system. */
  readonly folder: string
}

const PROGRAM_FOLDERS = ['usr/sbin', 'usr/bin', 'sbin', 'bin']
const LIBRARY_FOLDERS = ['usr/lib', 'lib'].flatMap((path) => [`${path}/x86_64-linux-gnu`, `${path}/aarch64-linux-gnu`])

/** Reads where the programs are. */
export function benchPrograms(): BenchPrograms {
  const folder = process.env['SANDYARD_BENCH_PROGRAMS'] ?? ''
  const unpacked = folder === '' ? [] : PROGRAM_FOLDERS.map((path) => join(folder, path))
  const ofMachine = ['/usr/sbin', '/usr/bin', '/sbin', '/bin']
  const path = [...ofMachine, ...unpacked]
  const libraries = folder === '' ? [] : LIBRARY_FOLDERS.map((one) => join(folder, one))
  const extensions = libraries.map((one) => join(one, 'xtables')).find((one) => existsSync(one)) // of iptables
  const look = (name: string): string | undefined => path.map((one) => join(one, name)).find((file) => existsSync(file))
  return {
    find(name) {
      const found = look(name)
      if (found === undefined) throw new Error(`this machine has no ${name}, and the set-up could not fetch it`)
      return found
    },
    has: (name) => look(name) !== undefined,
    env: {
      PATH: path.join(delimiter),
      ...(libraries.length === 0 ? {} : { LD_LIBRARY_PATH: libraries.join(delimiter) }),
      ...(extensions === undefined ? {} : { XTABLES_LIBDIR: extensions }),
    },
    folder,
  }
}
