import type { FileHandle } from 'node:fs/promises'

/** What a binary needs from the machine and from the file system: the header of an ELF file (elf(5)). */
export type ElfHeader = {
  /** The processor that the binary is built for, as Node names it where Node has a name. */
  readonly machine: string
  /** The path of the program that loads the binary's libraries. Null for a static binary. */
  readonly loader: string | null
}

const MAGIC = '\x7fELF'
const MACHINES: Readonly<Record<number, string>> = {
  3: 'ia32',
  8: 'mips',
  21: 'ppc64',
  22: 's390x',
  40: 'arm',
  62: 'x64',
  183: 'arm64',
  243: 'riscv64',
  258: 'loong64',
}
/** The processors whose programs a 64-bit kernel can also run. */
const ALSO_RUNS: Readonly<Partial<Record<string, string>>> = { x64: 'ia32', arm64: 'arm' }

/** How many bytes of the file to read. Linkers write the program headers directly after the header. */
const HEADER_BYTES = 1024
const LOADER_BYTES = 256
const PT_INTERP = 3

/** Reads the header of an ELF file. Returns null for any other file, and for a big-endian one. */
export async function readElfHeader(file: FileHandle): Promise<ElfHeader | null> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(HEADER_BYTES), 0, HEADER_BYTES, 0)
  const header = buffer.subarray(0, bytesRead)
  if (header.length < 64 || header.toString('latin1', 0, 4) !== MAGIC) return null
  const is64 = header[4] === 2
  if (header[5] !== 1) return null // big-endian: the offsets below would be read wrong
  const code = header.readUInt16LE(18)
  return { machine: MACHINES[code] ?? `processor ${String(code)}`, loader: await readLoader(file, header, is64) }
}

/** Whether a binary for `machine` runs on a processor, without an emulator. */
export function runsOn(machine: string, processor: string): boolean {
  return machine === processor || ALSO_RUNS[processor] === machine
}

async function readLoader(file: FileHandle, header: Buffer, is64: boolean): Promise<string | null> {
  const firstAt = is64 ? Number(header.readBigUInt64LE(32)) : header.readUInt32LE(28)
  const size = header.readUInt16LE(is64 ? 54 : 42)
  const count = header.readUInt16LE(is64 ? 56 : 44)
  for (let index = 0; index < count; index++) {
    const at = firstAt + index * size
    if (size < 32 || at + size > header.length) return null
    if (header.readUInt32LE(at) !== PT_INTERP) continue
    const offset = is64 ? Number(header.readBigUInt64LE(at + 8)) : header.readUInt32LE(at + 4)
    const { buffer, bytesRead } = await file.read(Buffer.alloc(LOADER_BYTES), 0, LOADER_BYTES, offset)
    return buffer.toString('utf8', 0, bytesRead).split('\0', 1)[0] ?? null
  }
  return null
}
