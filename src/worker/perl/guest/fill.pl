# Fills the folders that the worker brings into a Pod: the toolbox and the scripts of the sandbox. The init container of the Pod runs
# it from the helper image, which has the toolbox and nothing else.
#
# perl fill.pl FROM TOOLS SCRIPTS [NAME COUNT PIECE…]…     each script in pieces, because an argument has at most 128 KiB
use strict;
use warnings;
use Fcntl qw(:mode);

my ($from, $tools, $scripts, @rest) = @ARGV;
umask 0022;
copy($from, $tools);
while (@rest) {
    my ($name, $count) = splice @rest, 0, 2;
    put("$scripts/$name", join('', splice @rest, 0, $count), 0755);
}
exit 0;

sub copy {
    my ($source, $target) = @_;
    mkdir $target;
    opendir my $folder, $source or die "$source: $!\n";
    for my $name (grep { !/^\.\.?$/ } readdir $folder) {
        my @stat = stat "$source/$name" or die "$source/$name: $!\n";
        if (S_ISDIR($stat[2])) { copy("$source/$name", "$target/$name"); next }
        open my $file, '<:raw', "$source/$name" or die "$source/$name: $!\n";
        local $/;
        put("$target/$name", scalar <$file>, $stat[2] & 0777);
    }
}

sub put {
    my ($path, $content, $mode) = @_;
    open my $file, '>:raw', $path or die "$path: $!\n";
    print {$file} $content or die "$path: $!\n";
    close $file or die "$path: $!\n";
    chmod $mode, $path or die "$path: $!\n";
}
