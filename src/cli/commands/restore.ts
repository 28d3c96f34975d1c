import { resolve } from 'node:path'
import type { Command } from 'commander'
import { makeLog } from '../../lib/log.ts'
import { chooseBackup, openRepository } from '../backup/open-repository.ts'
import { showProgress } from '../backup/progress.ts'
import { restoreBackup } from '../backup/restore-backup.ts'
import { addSettings, runs, UsageError, type Call } from '../command.ts'
import { printStatus } from '../print-status.ts'

const HELP = `
The data folder must not exist or be empty. It may have another path, or be on another machine. Sandboxes that ran when the backup was
made are stopped as failed, with the reason. Then start the server with the new folder. Don't run it beside the original with the same
workers or addresses.`

/** Defines `sandyard restore`, which makes a data folder of a backup. */
export function defineRestore(restore: Command): void {
  restore
    .addHelpText('after', HELP)
    .argument('<target>', 'the folder or .tar file with the backup')
    .option(
      '--at <time>',
      'the newest backup of this time or before, such as 2028-02-29T12:00:00Z; otherwise the newest',
    )
  runs(addSettings(restore, 'dataDir', 'logLevel'), runRestore)
}

async function runRestore({ config, args: [target = ''], texts }: Call): Promise<void> {
  const at = texts['at'] === undefined ? null : new Date(texts['at'])
  if (at !== null && Number.isNaN(at.getTime())) throw new UsageError('--at takes a time such as 2028-02-29T12:00:00Z')
  const repository = await openRepository(resolve(target))
  const progress = showProgress()
  try {
    const { manifest } = await chooseBackup(repository, at)
    const input = { config, repository, manifest, log: makeLog(config.logLevel), onProgress: progress.show }
    const ended = await restoreBackup(input).finally(progress.end)
    printStatus(`restored the backup of ${manifest.taken_at} into ${config.dataDir}`)
    if (ended > 0) printStatus(`${String(ended)} sandboxes ran then, and are failed with that reason`)
    for (const text of manifest.left_out) printStatus(`not in the backup: ${text}`)
  } finally {
    await repository[Symbol.asyncDispose]?.()
  }
}
