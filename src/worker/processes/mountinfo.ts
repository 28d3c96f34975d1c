/** One line of mountinfo (proc(5)). */
export type MountInfo = {
  readonly id: string
  /** `major:minor` of the file system. */
  readonly device: string
  /** What of the file system is mounted. */
  readonly root: string
  readonly point: string
  readonly source: string
}

/** The mounts that a mountinfo file lists, in its order: a later one lies over an earlier one. */
export function parseMountinfo(text: string): readonly MountInfo[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [before = '', after = ''] = line.split(' - ')
      const [id = '', , device = '', root = '', point = ''] = before.split(' ').map(unescapeOctal)
      return { id, device, root, point, source: unescapeOctal(after.split(' ')[1] ?? '') }
    })
}

/** Blanks and the like are octal in mountinfo. */
function unescapeOctal(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 8)))
}
