import type { Config } from '../config.ts'
import { makeLog, type Log } from '../lib/log.ts'

/** Makes the program's log as the settings ask for it. */
export function openLog({ logLevel, logFormat }: Pick<Config, 'logLevel' | 'logFormat'>): Log {
  const isTerminal = process.stderr.isTTY // undefined for a file or a pipe
  return makeLog(logLevel, logFormat === 'auto' ? (isTerminal ? 'pretty' : 'json') : logFormat)
}
