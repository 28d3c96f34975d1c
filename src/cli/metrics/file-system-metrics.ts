import type { StatsFs } from 'node:fs'
import { statfs } from 'node:fs/promises'
import type { Registry } from 'prom-client'
import { addGauge, type Sample } from './gauges.ts'

/** Adds the metrics of the file system with the data folder. */
export function addDataFolderMetrics(register: Registry, dataDir: string): void {
  addGauge(
    register,
    {
      name: 'sandyard_data_folder_free_bytes',
      help: 'Free space for the program on the file system of the data folder.',
    },
    () => freeBytesOf(dataDir),
  )
  addGauge(
    register,
    {
      name: 'sandyard_data_folder_size_bytes',
      help: 'The size of the file system of the data folder.',
    },
    () => sizeBytesOf(dataDir),
  )
  addGauge(
    register,
    {
      name: 'sandyard_data_folder_free_inodes',
      help: 'Free inodes on the file system of the data folder. Absent if the file system makes them as needed.',
    },
    () => sampleOf(dataDir, ({ files, ffree }) => (files === 0 ? null : ffree)),
  )
}

/** The free space of the file system with this folder, as a sample. None if it can't be read. */
export function freeBytesOf(folder: string): Promise<readonly Sample[]> {
  return sampleOf(folder, ({ bavail, bsize }) => bavail * bsize)
}

/** The size of the file system with this folder, as a sample. None if it can't be read. */
export function sizeBytesOf(folder: string): Promise<readonly Sample[]> {
  return sampleOf(folder, ({ blocks, bsize }) => blocks * bsize)
}

async function sampleOf(folder: string, pick: (stats: StatsFs) => number | null): Promise<readonly Sample[]> {
  try {
    const value = pick(await statfs(folder))
    return value === null ? [] : [{ value }]
  } catch {
    return []
  }
}
